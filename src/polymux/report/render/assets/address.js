// The address's fragment names the selected session and stream (#session=ID&stream=KEY): the
// selection survives a reload, can be shared, and the back button restores the previous one.

let addressed = ""; // the fragment that shows the current selection

/** The selected session and stream as a fragment, without the #. */
function viewAddress() {
  const parts = new URLSearchParams({ session: data.sessions[view.session].id });
  if (view.stream >= 0) parts.set("stream", view.detail.streams[view.stream].key);
  return parts.toString();
}

/** Write the selection into the address, once per user action. */
function noteAddress() {
  queueMicrotask(() => {
    const now = viewAddress();
    if (now === addressed) return;
    addressed = now;
    location.hash = now;
  });
}

/** Show what the address names; the first session if it names none that is listed. */
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
