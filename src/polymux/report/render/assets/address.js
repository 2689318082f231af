// The page's address names what is looked at (#session=ID&stream=KEY): it survives a reload, can be
// shared, and the back button goes to what was chosen before.

let addressed = ""; // the view that the address names already

/** The chosen session and stream as the part of an address behind its #. */
function viewAddress() {
  const parts = new URLSearchParams({ session: data.sessions[view.session].id });
  if (view.stream >= 0) parts.set("stream", view.detail.streams[view.stream].key);
  return parts.toString();
}

/** Write the view into the address: once for all that one action of the reader changed. */
function noteAddress() {
  queueMicrotask(() => {
    const now = viewAddress();
    if (now === addressed) return;
    addressed = now;
    location.hash = now;
  });
}

/** Show what the address names; the first session where it names none that is listed here. */
function followAddress() {
  const text = location.hash.slice(1);
  if (text === addressed && text) return;
  const parts = new URLSearchParams(text);
  const session = data.sessions.findIndex((s) => s.id === parts.get("session"));
  openSession(Math.max(0, session));
  if (session >= 0 && view.detail) {
    const stream = view.detail.streams.findIndex((s) => s.key === parts.get("stream"));
    if (stream >= 0) chooseStream(stream);
  }
  addressed = viewAddress();
}

function startAddress() {
  followAddress();
  watch((what) => {
    if (what === "session" || what === "stream") noteAddress();
  });
  window.addEventListener("hashchange", followAddress);
}
