// Start-up, and the keys that work everywhere.

const PARTS = ["wrong", "sessions", "session", "sequence", "streams", "frames"];

function jump(part) {
  const section = byId(part);
  if (section.hidden) return;
  section.scrollIntoView({ block: "start" });
  section.querySelector("h2").focus({ preventScroll: true });
}

function showFacts() {
  const totals = data.totals;
  fill(byId("facts"),
    fact("captures", totals.captures ? count(totals.captures) : null),
    fact("sessions", count(totals.sessions)),
    fact("streams", count(totals.streams)),
    fact("frames", count(totals.frames)),
    fact("wire", pair([totals.bytes_dialer, totals.bytes_acceptor])),
    totals.protocols.map(([protocol, n]) => fact(protocol, many(n, "session"))),
    totals.started === null ? null : fact("from", date(totals.started)),
    totals.started === null ? null : fact("over", durationText(totals.ended - totals.started)));
  fill(byId("notes"), data.notes.map((note) => el("p", { class: "plain" }, note)));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
  if (typing) {
    if (event.key === "Escape") clearFilter(event.target);
    if (event.key === "ArrowDown" || event.key === "Enter") leaveFilter(event);
    return;
  }
  const part = PARTS[Number(event.key) - 1];
  if (part) jump(part);
  else if (event.key === "/") toFilter();
  else if (event.key === "?") showHelp();
  else if (event.key === "t") nextTheme();
  else if (event.key === "c") openCommands();
  else return;
  event.preventDefault();
}

/** Open the commands for what is shown, and move the focus to the first. */
function openCommands() {
  if (!data.sessions.length) return;
  byId("commands").open = true;
  byId("commands").scrollIntoView({ block: "center" });
  byId("commands-list").querySelector("button").focus({ preventScroll: true });
}

function clearFilter(filter) {
  filter.value = "";
  filter.dispatchEvent(new Event("input"));
  filter.blur();
}

function toFilter() {
  const filter = byId(view.detail ? "stream-filter" : "session-filter");
  filter.scrollIntoView({ block: "center" });
  filter.focus();
  filter.select();
}

/** Move the focus from a filter to the first row that matches. */
function leaveFilter(event) {
  const row = event.target.closest("section").querySelector("tbody tr[tabindex]");
  if (!row) return;
  event.preventDefault();
  row.focus();
}

function start() {
  showFacts();
  startTheme();
  startFindings();
  startSessions();
  startLanes();
  startSequence();
  startCommands();
  startThroughput();
  startStreams();
  startFrames();
  document.addEventListener("keydown", onKey);
  byId("keys").addEventListener("click", showHelp);
  for (const button of document.querySelectorAll("[data-jump]")) {
    button.addEventListener("click", () => jump(button.dataset.jump));
  }
  if (data.sessions.length) {
    startAddress();
  } else {
    for (const id of ["session", "sequence", "streams", "frames"]) byId(id).hidden = true;
  }
  requestAnimationFrame(() => requestAnimationFrame(() => {
    if (location.hash && data.sessions.length) jump("session");
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }));
}

start();
