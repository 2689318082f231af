// Interaction with the lanes: pointer, keys, and the line below that describes the cursor position.

let laneLayout = null;
let drag = null;
let repaint = 0;

function startLanes() {
  const canvas = byId("lanes");
  canvas.addEventListener("pointermove", pointerMoved);
  canvas.addEventListener("pointerdown", pointerDown);
  canvas.addEventListener("pointerup", pointerUp);
  canvas.addEventListener("pointerleave", () => { if (!drag) pointAt(null); });
  canvas.addEventListener("dblclick", () => chooseWindow(0, view.detail.end));
  canvas.addEventListener("keydown", laneKey);
  canvas.addEventListener("focus", () => {
    if (view.cursor === null) view.cursor = (view.from + view.to) / 2;
    changed("cursor");
  });
  canvas.addEventListener("blur", () => pointAt(null));
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => chooseWindow(0, view.detail.end));
  new ResizeObserver(paintSoon).observe(byId("lanes-box"));
  watch(paintSoon);
  showLegend();
}

function paintSoon() {
  if (!repaint) repaint = requestAnimationFrame(paintNow);
}

function paintNow() {
  repaint = 0;
  if (!view.detail || byId("lanes-box").clientWidth === 0) return;
  laneLayout = paintLanes(byId("lanes"));
  if (drag && drag.to !== null) paintDrag();
  showReadout();
  fill(byId("window"), zoomed() ? `${moment(view.from, 1e3)} to ${moment(view.to, 1e3)}` : "");
  byId("zoom-all").disabled = !zoomed();
  byId("zoom-out").disabled = !zoomed();
}

function paintDrag() {
  const pen = byId("lanes").getContext("2d");
  pen.fillStyle = colour("--select");
  const x = laneLayout.x(drag.from);
  pen.fillRect(x, 0, laneLayout.x(drag.to) - x, laneLayout.height);
}

function showLegend() {
  const entries = [
    ...CAUSES.map((cause, i) => [`hatched ${cause}`, CAUSE_WORDS[i]]),
    ["blocked", "blocked: no send credit"],
    ["mark error", "error"],
    ["mark warning", "warning"],
    ["cross", "reset or cancelled"],
  ];
  fill(byId("meaning-list"), MEANINGS.map(([kind, text, words]) => [
    el("dt", {}, el("span", { class: "key" }, el("i", { class: kind }), text)), el("dd", {}, words)]));
  fill(byId("legend"), el("span", { class: "dim" }, "stalled:"), entries.map(([kind, text]) => el("span", { class: "key" }, el("i", { class: kind }), text)));
}

const MEANINGS = [
  ["dialer", "dialer", "bytes that the side which opened the connection sent: they stand up from the middle of a lane"],
  ["acceptor", "acceptor", "bytes that the side which accepted it sent: they hang down from the middle"],
  ...CAUSES.map((cause, i) => [`hatched ${cause}`, CAUSE_WORDS[i], CAUSE_MEANINGS[cause]]),
  ["blocked", "blocked", "a thin line along the edge: this side had no send credit, whether or not it had more to send"],
  ["mark error", "error", "a frame that breaks a rule of the protocol"],
  ["mark warning", "warning", "a frame that breaks a rule, with lesser consequences"],
  ["cross", "reset or cancelled", "the stream was ended before both sides had finished"],
  ["life", "open", "the pale band: from the opening of the stream to its end"],
];

function pointAt(at) {
  view.cursor = at === null ? null : Math.max(view.from, Math.min(view.to, at));
  changed("cursor");
}

function pointerMoved(event) {
  if (!laneLayout || !view.detail) return;
  const lane = laneLayout.laneAt(event.offsetY);
  if (lane >= 0 && lane < view.detail.lanes.length) view.lane = lane;
  const at = event.offsetX < GUTTER ? null : laneLayout.time(Math.min(event.offsetX, laneLayout.width - MARGIN));
  if (drag && Math.abs(event.offsetX - drag.x) > 4) drag.to = at === null ? view.from : at;
  pointAt(at);
}

function pointerDown(event) {
  if (!laneLayout || event.button !== 0) return;
  const at = laneLayout.time(Math.max(GUTTER, Math.min(event.offsetX, laneLayout.width - MARGIN)));
  drag = { x: event.offsetX, from: at, to: null };
  byId("lanes").setPointerCapture(event.pointerId);
}

function pointerUp(event) {
  const done = drag;
  drag = null;
  if (!done) return;
  if (done.to !== null) {
    chooseWindow(Math.min(done.from, done.to), Math.max(done.from, done.to));
    return;
  }
  const lane = view.detail.lanes[laneLayout.laneAt(event.offsetY)];
  if (lane && lane.stream) chooseStream(lane.stream.index === view.stream ? -1 : lane.stream.index);
}

function laneKey(event) {
  if (!view.detail || event.ctrlKey || event.metaKey || event.altKey) return;
  const wide = view.to - view.from;
  const step = Math.max(view.detail.width, wide / 100) * (event.shiftKey ? 10 : 1);
  const at = view.cursor === null ? (view.from + view.to) / 2 : view.cursor;
  const actions = {
    ArrowLeft: () => stepTo(at - step),
    ArrowRight: () => stepTo(at + step),
    ArrowUp: () => stepLane(-1),
    ArrowDown: () => stepLane(1),
    Home: () => stepTo(0),
    End: () => stepTo(view.detail.end),
    "+": () => zoom(0.5, at),
    "=": () => zoom(0.5, at),
    "-": () => zoom(2, at),
    0: () => chooseWindow(0, view.detail.end),
    Escape: () => { if (zoomed()) chooseWindow(0, view.detail.end); else chooseStream(-1); },
    Enter: () => {
      const lane = view.detail.lanes[view.lane];
      if (lane && lane.stream) chooseStream(lane.stream.index === view.stream ? -1 : lane.stream.index);
    },
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

/** Move the cursor; the time window follows when the cursor leaves it. */
function stepTo(at) {
  const target = Math.max(0, Math.min(view.detail.end, at));
  const wide = view.to - view.from;
  view.cursor = target;
  if (target < view.from) chooseWindow(target, target + wide);
  else if (target > view.to) chooseWindow(target - wide, target);
  else changed("cursor");
}

function stepLane(step) {
  view.lane = Math.max(0, Math.min(view.detail.lanes.length - 1, view.lane + step));
  if (view.cursor === null) view.cursor = (view.from + view.to) / 2;
  changed("cursor");
}

function showReadout() {
  const lane = view.detail.lanes[view.lane];
  if (view.cursor === null || !lane) {
    fill(byId("readout"), el("span", { class: "dim" },
      "Point at a lane; drag to zoom, click to choose a stream. By keyboard: arrows, + and −, enter."));
    return;
  }
  const bucket = Math.min(BUCKETS - 1, Math.floor(view.cursor / view.detail.width));
  const sent = lane.sides.map((cells, side) => {
    const cell = cells[bucket];
    return `${SIDES[side]} ${cell > 0 ? sizeText(Math.round(cell)) : cell < 0 ? "frames without content" : "nothing"}`;
  });
  const from = bucket * view.detail.width;
  const near = ((view.to - view.from) / laneLayout.plot) * 6;
  const index = lane.stream ? lane.stream.index : -1;
  const stalls = view.detail.stalls.filter((s) => s.stream === index && s.at <= view.cursor && view.cursor <= s.at + s.lasted);
  const marks = view.detail.marks.filter((m) => m.stream === index && m.at !== null && Math.abs(m.at - view.cursor) <= near);
  fill(byId("readout"),
    el("b", {}, lane.stream ? name(labelOf(lane.stream)) : "the rest"), " ",
    el("span", { class: "dim" }, `${moment(from, 1e3)} to ${moment(from + view.detail.width, 1e3)}: `), sent.join(", "),
    stalls.slice(0, 2).map((s) => [" · ", el("span", { class: "stall" }, name(s.text))]).flat(),
    marks.slice(0, 2).map((m) => [" · ", el("span", { class: "error" }, name(m.text))]).flat());
}
