// The streams of the selected session.

let streamGrid = null;

function startStreams() {
  streamGrid = makeGrid(byId("stream-grid"), "Streams of the session, in the order they were opened", [
    { label: "stream", value: (s) => s.key, node: streamKeyNode },
    { label: "name", value: (s) => s.name, node: (s) => (s.name ? name(s.name) : ""), wide: true },
    { label: "opened", value: startOf, text: (s) => moment(startOf(s), 1e3), number: true },
    { label: "lasted", value: lifetimeOf, text: (s) => (lifetimeOf(s) === null ? "" : durationText(lifetimeOf(s))), number: true },
    { label: "ending", value: (s) => s.ending, node: streamEndNode, wide: true },
    { label: "dialer sent", value: (s) => s.bytesD, text: (s) => sizeText(s.bytesD), number: true },
    { label: "acceptor sent", value: (s) => s.bytesA, text: (s) => sizeText(s.bytesA), number: true },
    { label: "frames", value: (s) => s.framesD + s.framesA, text: (s) => `${count(s.framesD)} / ${count(s.framesA)}`, number: true, title: "dialer's / acceptor's" },
    { label: "granted", value: (s) => Number(s.creditD || 0) + Number(s.creditA || 0), text: (s) => both(s.creditD, s.creditA, grouped), number: true, title: "credit granted to the dialer / to the acceptor" },
    { label: "peak in flight", value: (s) => Math.max(s.inFlightD || 0, s.inFlightA || 0), text: (s) => both(s.inFlightD, s.inFlightA, sizeText), number: true, title: "bytes sent and not acknowledged: dialer's / acceptor's" },
    { label: "blocked", value: (s) => (s.blockedD || 0) + (s.blockedA || 0), text: (s) => both(s.blockedD, s.blockedA, durationText), number: true, title: "time the dialer / the acceptor was blocked: no send credit" },
    { label: "head-of-line", value: (s) => (s.holBlockedD || 0) + (s.holBlockedA || 0), text: (s) => (s.holBlockedD || s.holBlockedA ? both(s.holBlockedD, s.holBlockedA, durationText) : ""), number: true, title: "time the dialer / the acceptor was head-of-line blocked by other streams" },
    { label: "findings", value: weightOf, node: foundNode },
  ], {
    choose: (s) => { chooseStream(s.index === view.stream ? -1 : s.index); },
    chosen: (s) => s.index === view.stream,
  });
  byId("stream-filter").addEventListener("input", showStreams);
  byId("stream-found").addEventListener("change", showStreams);
  watch((what) => {
    if (what === "session") showStreams();
    if (what === "stream") streamGrid.refresh();
  });
}

function startOf(stream) {
  const seen = [stream.opened, stream.firstD, stream.firstA].filter((at) => at !== null);
  return seen.length ? Math.min(...seen) : null;
}

function lifetimeOf(stream) {
  const start = startOf(stream);
  const last = [stream.closed, stream.lastD, stream.lastA].filter((at) => at !== null);
  return start === null || !last.length ? null : Math.max(...last) - start;
}

function both(dialer, acceptor, format) {
  if (dialer === null && acceptor === null) return "";
  return [dialer, acceptor].map((value) => (value === null ? "–" : format(value))).join(" / ");
}

/** Group the digits of an integer that comes as text: it may exceed the exact range of Number. */
function grouped(digits) {
  return String(digits).replace(/\B(?=(\d{3})+$)/g, ",");
}

function streamKeyNode(stream) {
  const lane = view.detail.laneOf.get(stream.index);
  const hue = lane === undefined ? "" : ` hue-${view.detail.lanes[lane].colour % HUES}`;
  return el("span", { class: `swatch${hue}` }, el("b", { class: "key" }, stream.key));
}

function streamEndNode(stream) {
  return el("span", {}, endingNode(stream.ending),
    stream.resetBy && ` by ${stream.resetBy}`, stream.error && [": ", name(stream.error)]);
}

function showStreams() {
  if (!view.detail) return;
  const matches = matcher(byId("stream-filter").value);
  const onlyFound = byId("stream-found").checked;
  const rows = view.detail.streams.filter((s) => (!onlyFound || weightOf(s) > 0)
    && matches([s.key, s.name || "", s.ending, s.resetBy || "", s.error || ""].join(" ")));
  streamGrid.show(rows);
  const total = view.detail.session.streams;
  const hidden = Math.max(0, total - view.detail.streams.length);
  fill(byId("stream-count"), `${count(rows.length)} of ${count(total)}`,
    hidden ? `; ${count(hidden)} smaller ones are not listed` : "");
}
