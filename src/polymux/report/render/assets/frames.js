// The frames of the selected stream in the selected time window.

let frameGrid = null;
const VERDICTS = ["", "crossed", "violation"];

function startFrames() {
  frameGrid = makeGrid(byId("frame-grid"), "Frames in order of time", [
    { label: "at", value: (f) => f.at, text: (f) => moment(f.at, 1), number: true },
    { label: "sender", value: (f) => f.side, node: senderNode },
    { label: "frame", value: (f) => f.index, text: (f) => count(f.index), number: true, title: "index in its direction, from 0" },
    { label: "kind", value: (f) => f.kind },
    { label: "stream", value: (f) => f.stream, node: frameStreamNode },
    { label: "size", value: (f) => f.size, text: (f) => count(f.size), number: true },
    { label: "payload", value: (f) => f.payload, text: (f) => count(f.payload), number: true },
    { label: "amount", value: (f) => f.amount, text: (f) => (f.amount === null ? "" : count(f.amount)), number: true, title: "the number that changes credit or a window" },
    { label: "offset", value: (f) => f.offset, text: (f) => count(f.offset), number: true },
    { label: "verdict", value: (f) => f.verdict, node: verdictNode, wide: true },
    ...(data.payload ? [{ label: "content", value: (f) => f.data, node: (f) => (f.data === null ? "" : contentNode(f.data)), wide: true }] : []),
  ], { rowClass: (f) => VERDICTS[f.verdict], between: leftOut });
  watch((what) => {
    if (what === "session" || what === "stream" || what === "window") showFrames();
  });
}

function senderNode(frame) {
  return el("span", { class: SIDES[frame.side] }, frame.side ? "← acceptor" : "→ dialer");
}

function frameStreamNode(frame) {
  if (frame.stream === -1) return "";
  if (frame.stream < 0) return el("span", { class: "dim" }, "not listed");
  const stream = view.detail.streams[frame.stream];
  return el("button", { type: "button", class: "link", on: { click: () => chooseStream(stream.index) } }, stream.key);
}

function verdictNode(frame) {
  if (frame.verdict === 0) return "";
  if (frame.verdict === 1) return el("span", { class: "dim" }, "crossed");
  const marks = view.detail.marks.filter((m) => m.side === frame.side && m.index === frame.index && m.level < 2);
  if (!marks.length) return el("span", { class: "error" }, "violation");
  return el("span", {}, marks.map((mark) => el("button", {
    type: "button", class: "rule", title: mark.text, on: { click: () => showRule(mark.rule) },
  }, data.rules[mark.rule].name)));
}

/** Bytes in hexadecimal, followed by their printable ASCII characters. */
function contentNode(hex) {
  const pairs = hex.match(/../g) || [];
  const text = pairs.map((two) => {
    const code = parseInt(two, 16);
    return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
  }).join("");
  return el("span", { class: "bytes" }, pairs.slice(0, 64).join(" "), pairs.length > 64 ? " …" : "", " ",
    el("span", { class: "dim" }, text.slice(0, 256)));
}

/** The line between two rows of a session: how many frames are left out between them. */
function leftOut(frame) {
  if (view.detail.allFrames || view.stream >= 0) return null;
  const before = previousOf.get(frame);
  if (before === undefined || frame.index - before <= 1) return null;
  return `${many(frame.index - before - 1, "frame")} of the ${SIDES[frame.side]} not in this report`;
}

let previousOf = new Map();

function showFrames() {
  if (!view.detail) return;
  const rows = view.detail.frames.filter((f) => f.at >= view.from && f.at <= view.to
    && (view.stream < 0 || f.stream === view.stream));
  previousOf = new Map();
  const last = [undefined, undefined];
  for (const frame of rows) {
    previousOf.set(frame, last[frame.side]);
    last[frame.side] = frame.index;
  }
  frameGrid.show(rows);
  showScope();
  const stream = view.detail.streams[view.stream];
  const total = stream ? stream.framesD + stream.framesA : view.detail.session.frames;
  const note = view.detail.allFrames ? "" : "; selected: around violations and stalls, openings and endings, first and last, and an even sample";
  const text = zoomed() ? `${count(rows.length)} shown in this window` : `${count(rows.length)} of ${count(total)}`;
  fill(byId("frame-count"), text, note);
}

function showScope() {
  const stream = view.detail.streams[view.stream];
  const chips = [];
  if (stream) chips.push(scopeChip(["stream ", name(labelOf(stream))], "all streams", () => chooseStream(-1)));
  if (zoomed()) {
    chips.push(scopeChip([`${moment(view.from, 1e3)} to ${moment(view.to, 1e3)}`], "the whole session",
      () => chooseWindow(0, view.detail.end)));
  }
  fill(byId("scope"), chips.length ? chips : el("span", { class: "dim" }, "all streams, whole session"));
}

function scopeChip(words, instead, clear) {
  return el("button", { type: "button", class: "chip", title: `Show ${instead}`, on: { click: clear } },
    words, el("span", { class: "hide" }, `; show ${instead}`), el("i", { "aria-hidden": "true" }, " ×"));
}
