"""Faults of the Nerdbank model peers, each injected in a state where it breaks one rule."""

from typing import TYPE_CHECKING

from polymux.testing.models.base import Fault, IdUse
from polymux.testing.models.nerdbank_wire import CODES, encode_frame, encode_payload

if TYPE_CHECKING:
    from polymux.testing.models.nerdbank import Channel, NerdbankPeer

FAULTS = (
    "window-exceeded", "acknowledged-too-much", "content-after-completed", "completed-twice",
    "frame-after-termination", "terminated-twice", "content-before-acceptance", "id-reused",
    "accepted-unknown-offer", "unknown-channel", "bad-acceptance", "bad-offer", "bad-frame",
    "id-parity", "wrong-source", "window-shrunk", "bad-window", "payload-too-long",
    "frame-too-long", "unknown-code", "offer-without-window", "not-terminated",
    "termination-unanswered", "id-recycled", "frame-after-peer-termination", "bad-magic",
    "bad-handshake", "version-mismatch", "equal-randoms", "truncated",
)  # fmt: skip
MAX_SENT_PAYLOAD = 20480


def inject_fault(peer: "NerdbankPeer", fault: str) -> bool:
    """Inject this fault if it is certain to be a violation now. Return whether it was."""
    rule = f"nerdbank.{fault}"
    if fault in ("accepted-unknown-offer", "unknown-channel", "bad-offer", "bad-frame",
                 "id-parity", "wrong-source", "bad-window", "offer-without-window"):  # fmt: skip
        return inject_off_channel(peer, fault, rule)
    channels = [c for key, c in peer.channels.items() if key not in peer.faulted_ids]
    peer.rng.shuffle(channels)
    return any(inject_on_channel(peer, channel, fault, rule) for channel in channels)


def inject_on_channel(peer: "NerdbankPeer", channel: "Channel", fault: str, rule: str) -> bool:
    use, version = channel.use, peer.version
    found = Fault(rule, use.label, needs_sender_vantage=fault in ("frame-after-peer-termination",))
    live = not channel.is_terminated
    writing = live and channel.accepted and not channel.completed
    room = channel.send_window != 0
    if fault == "window-exceeded" and writing and 0 <= channel.send_window < 5000:
        peer.send_frame("content", use, 0, bytes(channel.send_window + 1), found)
    elif fault == "acknowledged-too-much" and live and version > 1 and channel.accepted:
        peer.send_frame("processed", use, channel.unprocessed + 1, b"", found)
    elif fault == "content-after-completed" and live and channel.completed and room:
        peer.send_frame("content", use, 0, b"x", found)
    elif fault == "completed-twice" and live and channel.completed:
        peer.send_frame("complete", use, 0, b"", found)
    elif fault == "frame-after-termination" and channel.terminated:
        verb = peer.rng.choice(["content", "complete", "processed" if version > 1 else "content"])
        peer.send_frame(verb, use, 0, b"x" if verb == "content" else b"", found)
    elif fault == "terminated-twice" and channel.terminated:
        peer.send_frame("terminate", use, 0, b"", found)
    elif fault == "content-before-acceptance" and live and not channel.accepted:
        if channel.offered_by_self or not room:
            return False
        verb = peer.rng.choice(["content", "complete"])
        peer.send_frame(verb, use, 0, b"x" if verb == "content" else b"", found)
    elif fault == "bad-acceptance" and live and channel.accepted:
        peer.send_frame("accept", use, 100, b"", found)
    elif (
        fault == "window-shrunk"
        and live
        and channel.accepted
        and channel.receive_window > 1 < version
    ):
        peer.send_frame("adjust", use, channel.receive_window - 1, b"", found)
    elif (
        fault == "payload-too-long" and writing and not MAX_SENT_PAYLOAD >= channel.send_window >= 0
    ):
        peer.send_frame("content", use, 0, bytes(MAX_SENT_PAYLOAD + 1), found)
    elif fault == "frame-too-long" and writing and version > 1 and channel.send_window > 65537:
        peer.send_frame("content", use, 0, bytes(65537), found)
    elif fault == "unknown-code" and live:
        data = encode_frame(version, 99, use.stream_id, peer.source(use), b"", peer.rng)
        peer.write_frame("bad", data, use, fault=found)
    elif (
        fault == "frame-after-peer-termination"
        and channel.peer_terminated
        and not channel.terminated
    ):
        if channel.completed or not (channel.offered_by_self or channel.accepted):
            return False
        peer.send_frame("complete", use, 0, b"", found)
    elif fault in ("id-reused", "id-recycled") and channel.offered_by_self:
        over = channel.terminated and channel.peer_terminated
        if over != (fault == "id-recycled") or (not over and channel.is_terminated):
            return False
        if not over and channel.completed:
            return False
        again = IdUse(use.opener, use.stream_id, use.incarnation + 1)
        peer.send_frame("offer", again, 100, b"again", Fault(rule, again.label))
    else:
        return inject_missing_termination(peer, channel, fault, found)
    return True


def inject_missing_termination(
    peer: "NerdbankPeer", channel: "Channel", fault: str, found: Fault
) -> bool:
    """Inject a missing termination."""
    if channel.terminated:
        return False
    if fault == "termination-unanswered" and channel.peer_terminated:
        peer.omit_reply(found, channel.use)
        return True
    if (
        fault == "not-terminated"
        and channel.completed
        and channel.peer_completed
        and not channel.peer_terminated
    ):
        other = peer.model.nerdbank_peers[1 - peer.side]
        twin = other.channels[channel.use.opener, channel.use.stream_id]
        if twin.terminated or twin.peer_terminated:
            return False
        other.faulted_ids.add((channel.use.opener, channel.use.stream_id))
        peer.omit_reply(found, channel.use)
        return True
    return False


def inject_off_channel(peer: "NerdbankPeer", fault: str, rule: str) -> bool:
    """Send a frame on a channel that was never offered, or an invalid offer."""
    version, side, fresh = peer.version, peer.side, peer.next_id + 1000
    use = IdUse(side, fresh)
    new = Fault(rule, use.label)
    if fault in ("accepted-unknown-offer", "unknown-channel"):
        other = IdUse(1 - side, fresh + (version < 3))
        verb = "accept" if fault.startswith("accepted") else peer.rng.choice(
            ["content", "complete", "terminate"])  # fmt: skip
        peer.send_frame(verb, other, 100, b"x" if verb == "content" else b"", Fault(rule))
    elif fault == "bad-frame" and version == 3:
        peer.write_frame("bad", b"\x92\x02\x01", fault=Fault(rule))
    elif fault == "bad-frame" and version == 2:
        peer.write_frame("bad", b"\x91\x02", fault=Fault(rule))
    elif fault == "bad-frame":
        live = [c for c in peer.live_channels() if c.accepted]
        if not live:
            return False
        data = encode_frame(1, CODES["processed"], live[0].use.stream_id, 0, b"", None)
        peer.write_frame("processed", data, live[0].use, fault=Fault(rule, live[0].use.label))
    elif fault == "id-parity" and version < 3:
        wrong = IdUse(1 - side, fresh + 1)
        peer.send_frame("offer", wrong, 100, b"wrong", Fault(rule, wrong.label))
    elif fault == "wrong-source" and version == 3:
        wrong = IdUse(1 - side, fresh)
        peer.send_frame("offer", wrong, 100, b"wrong", Fault(rule, wrong.label))
    elif version == 1:
        return False
    elif fault == "bad-offer":
        data = encode_frame(version, CODES["offer"], fresh, 1, b"\x01", peer.rng)
        peer.write_frame("offer", data, use, fault=new)
    elif fault == "bad-window":
        peer.send_frame("offer", use, 0, b"none", new)
    elif fault == "offer-without-window":
        payload = b"\x91" + encode_payload(version, "offer", 0, b"none")[1:-1]
        data = encode_frame(version, CODES["offer"], fresh, 1, payload, peer.rng)
        peer.write_frame("offer", data, use, fault=new)
    else:
        return False
    return True
