"""The faults that a model peer of Nerdbank commits, each in a state where it breaks one rule."""

from typing import TYPE_CHECKING

from polymux.testing.models.base import Fault, Use
from polymux.testing.models.nerdbank_wire import CODES, body, frame

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
LARGEST = 20480


def plant(peer: "NerdbankPeer", fault: str) -> bool:
    """Commit this fault, if it can be told from everything legal now."""
    rule = f"nerdbank.{fault}"
    if fault in ("accepted-unknown-offer", "unknown-channel", "bad-offer", "bad-frame",
                 "id-parity", "wrong-source", "bad-window", "offer-without-window"):  # fmt: skip
        return plant_anywhere(peer, fault, rule)
    channels = [c for key, c in peer.channels.items() if key not in peer.spoilt]
    peer.rng.shuffle(channels)
    return any(plant_on(peer, channel, fault, rule) for channel in channels)


def plant_on(peer: "NerdbankPeer", channel: "Channel", fault: str, rule: str) -> bool:
    use, version = channel.use, peer.version
    found = Fault(rule, use.label, beside=fault in ("frame-after-peer-termination",))
    live = not channel.quiet
    writing = live and channel.accepted and not channel.completed
    room = channel.window != 0
    if fault == "window-exceeded" and writing and 0 <= channel.window < 5000:
        peer.put("content", use, 0, bytes(channel.window + 1), found)
    elif fault == "acknowledged-too-much" and live and version > 1 and channel.accepted:
        peer.put("processed", use, channel.unprocessed + 1, b"", found)
    elif fault == "content-after-completed" and live and channel.completed and room:
        peer.put("content", use, 0, b"x", found)
    elif fault == "completed-twice" and live and channel.completed:
        peer.put("complete", use, 0, b"", found)
    elif fault == "frame-after-termination" and channel.terminated:
        verb = peer.rng.choice(["content", "complete", "processed" if version > 1 else "content"])
        peer.put(verb, use, 0, b"x" if verb == "content" else b"", found)
    elif fault == "terminated-twice" and channel.terminated:
        peer.put("terminate", use, 0, b"", found)
    elif fault == "content-before-acceptance" and live and not channel.accepted:
        if channel.mine or not room:
            return False
        verb = peer.rng.choice(["content", "complete"])
        peer.put(verb, use, 0, b"x" if verb == "content" else b"", found)
    elif fault == "bad-acceptance" and live and channel.accepted:
        peer.put("accept", use, 100, b"", found)
    elif fault == "window-shrunk" and live and channel.accepted and channel.room > 1 < version:
        peer.put("adjust", use, channel.room - 1, b"", found)
    elif fault == "payload-too-long" and writing and not LARGEST >= channel.window >= 0:
        peer.put("content", use, 0, bytes(LARGEST + 1), found)
    elif fault == "frame-too-long" and writing and version > 1 and channel.window > 65537:
        peer.put("content", use, 0, bytes(65537), found)
    elif fault == "unknown-code" and live:
        data = frame(version, 99, use.number, peer.source(use), b"", peer.rng)
        peer.write("bad", data, use, fault=found)
    elif fault == "frame-after-peer-termination" and channel.over and not channel.terminated:
        if channel.completed or not (channel.mine or channel.accepted):
            return False
        peer.put("complete", use, 0, b"", found)
    elif fault in ("id-reused", "id-recycled") and channel.mine:
        over = channel.terminated and channel.over
        if over != (fault == "id-recycled") or (not over and channel.quiet):
            return False
        if not over and channel.completed:
            return False
        again = Use(use.opener, use.number, use.incarnation + 1)
        peer.put("offer", again, 100, b"again", Fault(rule, again.label))
    else:
        return plant_silence(peer, channel, fault, found)
    return True


def plant_silence(peer: "NerdbankPeer", channel: "Channel", fault: str, found: Fault) -> bool:
    """A termination that never comes."""
    if channel.terminated:
        return False
    if fault == "termination-unanswered" and channel.over:
        peer.omit(found, channel.use)
        return True
    if fault == "not-terminated" and channel.completed and channel.ended and not channel.over:
        other = peer.model.mates[1 - peer.side]
        twin = other.channels[channel.use.opener, channel.use.number]
        if twin.terminated or twin.over:
            return False
        other.spoilt.add((channel.use.opener, channel.use.number))
        peer.omit(found, channel.use)
        return True
    return False


def plant_anywhere(peer: "NerdbankPeer", fault: str, rule: str) -> bool:
    """Frames about channels that were never offered, and offers that are wrong in themselves."""
    version, side, fresh = peer.version, peer.side, peer.next + 1000
    use = Use(side, fresh)
    new = Fault(rule, use.label)
    if fault in ("accepted-unknown-offer", "unknown-channel"):
        other = Use(1 - side, fresh + (version < 3))
        verb = "accept" if fault.startswith("accepted") else peer.rng.choice(
            ["content", "complete", "terminate"])  # fmt: skip
        peer.put(verb, other, 100, b"x" if verb == "content" else b"", Fault(rule))
    elif fault == "bad-frame" and version == 3:
        peer.write("bad", b"\x92\x02\x01", fault=Fault(rule))
    elif fault == "bad-frame" and version == 2:
        peer.write("bad", b"\x91\x02", fault=Fault(rule))
    elif fault == "bad-frame":
        live = [c for c in peer.live() if c.accepted]
        if not live:
            return False
        data = frame(1, CODES["processed"], live[0].use.number, 0, b"", None)
        peer.write("processed", data, live[0].use, fault=Fault(rule, live[0].use.label))
    elif fault == "id-parity" and version < 3:
        wrong = Use(1 - side, fresh + 1)
        peer.put("offer", wrong, 100, b"wrong", Fault(rule, wrong.label))
    elif fault == "wrong-source" and version == 3:
        wrong = Use(1 - side, fresh)
        peer.put("offer", wrong, 100, b"wrong", Fault(rule, wrong.label))
    elif version == 1:
        return False
    elif fault == "bad-offer":
        data = frame(version, CODES["offer"], fresh, 1, b"\x01", peer.rng)
        peer.write("offer", data, use, fault=new)
    elif fault == "bad-window":
        peer.put("offer", use, 0, b"none", new)
    elif fault == "offer-without-window":
        payload = b"\x91" + body(version, "offer", 0, b"none")[1:-1]
        data = frame(version, CODES["offer"], fresh, 1, payload, peer.rng)
        peer.write("offer", data, use, fault=new)
    else:
        return False
    return True
