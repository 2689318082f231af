// The list of sessions, and the facts of the selected one.

let sessionGrid = null;

function startSessions() {
  data.sessions.forEach((session, i) => { session.index = i; });
  sessionGrid = makeGrid(byId("session-grid"), "Sessions, those with findings first", [
    { label: "protocol", value: protocolOf },
    { label: "dialer → acceptor", value: (s) => s.dialer, node: (s) => name(`${s.dialer} → ${s.acceptor}`), wide: true },
    { label: "started", value: (s) => s.started, text: (s) => date(s.started) },
    { label: "lasted", value: (s) => s.lasted, text: (s) => durationText(s.lasted), number: true },
    { label: "round trip", value: (s) => s.rtt, text: (s) => (s.rtt ? durationText(s.rtt) : ""), number: true },
    { label: "streams", value: (s) => s.streams, text: (s) => count(s.streams), number: true },
    { label: "frames", value: (s) => s.frames, text: (s) => count(s.frames), number: true },
    { label: "dialer sent", value: (s) => s.bytes[0], text: (s) => sizeText(s.bytes[0]), number: true },
    { label: "acceptor sent", value: (s) => s.bytes[1], text: (s) => sizeText(s.bytes[1]), number: true },
    { label: "findings", value: weightOf, node: foundNode },
    { label: "ending", value: (s) => s.ending, node: (s) => endingNode(s.ending) },
  ], { choose: (s) => { openSession(s.index); jump("session"); }, chosen: (s) => s.index === view.session });
  byId("session-filter").addEventListener("input", showSessions);
  watch((what) => {
    if (what === "session") { sessionGrid.refresh(); showSessionFacts(); }
  });
  showSessions();
}

function protocolOf(session) {
  return [session.protocol || "unknown", session.version, session.dialect].filter(Boolean).join(" ");
}

function showSessions() {
  const matches = matcher(byId("session-filter").value);
  const rows = data.sessions.filter((s) => matches(
    [protocolOf(s), s.dialer, s.acceptor, s.ending, s.id, s.note || "", s.tls ? tlsText(s.tls) : "", s.captures.join(" ")].join(" ")));
  sessionGrid.show(rows);
  const hidden = data.totals.sessions - data.sessions.length;
  fill(byId("session-count"), `${count(rows.length)} of ${count(data.totals.sessions)}`,
    hidden > 0 ? `; ${count(hidden)} with fewer findings or less traffic are not listed` : "");
}

/** Findings as one number for sorting: errors, then warnings, then stalls. */
function weightOf(row) {
  return row.found[0] * 1e6 + row.found[1] * 1e3 + row.found[2];
}

function foundNode(row) {
  const [errors, warnings, stalls] = row.found;
  const parts = [[errors, "error"], [warnings, "warning"], [stalls, "stall"]].filter(([n]) => n);
  return el("span", { class: "tallies" }, parts.map(([n, level]) => el("span", {
    class: `tally ${level}`, title: many(n, level),
  }, el("i", { "aria-hidden": "true" }, LEVEL_SIGNS[level]), count(n), el("span", { class: "hide" }, ` ${level}`))));
}

function endingNode(ending) {
  const bad = ["reset", "abandoned", "undecodable", "truncated", "gap"].includes(ending);
  const calm = ["clean", "open", "unknown"].includes(ending);
  return el("span", { class: `ending ${bad ? "bad" : calm ? "calm" : "odd"}` }, ending);
}

function fact(label, value) {
  if (value === null || value === undefined || value === "") return null;
  return el("li", {}, el("span", { class: "dim" }, label), " ", value instanceof Node ? value : el("b", {}, value));
}

/** The latency of requests: [requester, requests, answered, p50, p90, p99, longest]. */
function requestFact([requester, requests, answered, p50, p90, p99, longest]) {
  const open = requests > answered ? `, ${count(answered)} answered` : "";
  const times = longest === null ? "" : `: half within ${durationText(p50)}, 90 % within ${durationText(p90)}, 99 % within ${durationText(p99)}, longest ${durationText(longest)}`;
  return fact(`requests of the ${requester}`, `${count(requests)}${open}${times}`);
}

function pair(values) {
  return `${sizeText(values[0])} → ${sizeText(values[1])} ←`;
}

function tlsText(tls) {
  return [
    tls.suite,
    tls.serverName ? `server ${tls.serverName}` : null,
    tls.alpn ? `application ${tls.alpn}` : null,
    tls.records !== null ? `${count(tls.records)} records` : "not opened",
    tls.unopened ? `${count(tls.unopened)} of them not opened` : null,
    tls.handshake !== null ? `handshake ${durationText(tls.handshake)}` : null,
  ].filter(Boolean).join(", ");
}

function showSessionFacts() {
  const session = data.sessions[view.session];
  fill(byId("session-title"), protocolOf(session), " ", name(`${session.dialer} → ${session.acceptor}`));
  fill(byId("session-facts"),
    fact("started", date(session.started)),
    fact("lasted", durationText(session.lasted)),
    fact("round trip", session.rtt ? durationText(session.rtt) : null),
    session.requests.map(requestFact),
    fact("streams", count(session.streams)),
    fact("frames", count(session.frames)),
    fact("wire", pair(session.bytes)),
    fact("content", pair(session.payload)),
    session.missing[0] + session.missing[1] > 0 ? fact("missing", pair(session.missing)) : null,
    session.undecoded[0] + session.undecoded[1] > 0 ? fact("undecoded", pair(session.undecoded)) : null,
    fact("captured", session.vantage === "middle" ? "in the middle" : session.vantage === "unordered" ? "directions not in one order" : `at the ${session.vantage}`),
    fact("ending", endingNode(session.ending)),
    fact("TLS", session.tls ? name(tlsText(session.tls)) : null),
    fact("evidence", session.evidence ? name(session.evidence) : null),
    fact("from", session.captures.length ? name(session.captures.join(", ") + (session.moreCaptures ? ` and ${session.moreCaptures} more` : "")) : null),
    fact("id", session.id),
    fact("note", session.note ? name(session.note) : null));
  const absent = byId("session-absent");
  absent.hidden = view.detail !== null;
  byId("drawing").hidden = view.detail === null;
  for (const id of ["sequence", "streams", "frames"]) byId(id).hidden = view.detail === null;
  fill(absent, `Lanes, streams and frames are in this report for the ${count(data.details.length)} most significant sessions only; this one is only listed.`);
}
