// The lanes, drawn on a canvas: when each stream carried content, where it stalled, its violations.

const WIDE_GUTTER = 176; // labels on the left, also the width of the chart's axis above
const NARROW_GUTTER = 104; // on a narrow screen
let GUTTER = WIDE_GUTTER;
const MARGIN = 72; // sums on the right
const AXIS = 22;
const WIRE = 15; // height of one direction of the wire
const HUES = 12;

/** The geometry of the drawing: positions of the lanes, and time to pixels and back. */
function layoutOf(canvas, detail) {
  const width = canvas.parentElement.clientWidth;
  GUTTER = gutterOf(width);
  const row = detail.lanes.length <= 6 ? 38 : detail.lanes.length <= 14 ? 30 : 22;
  const top = AXIS + 2 * WIRE + 10;
  const layout = { width, row, top, height: top + detail.lanes.length * row + 6, plot: width - GUTTER - MARGIN };
  layout.x = (us) => GUTTER + ((us - view.from) / (view.to - view.from)) * layout.plot;
  layout.time = (x) => view.from + ((x - GUTTER) / layout.plot) * (view.to - view.from);
  layout.laneAt = (y) => Math.floor((y - top) / row);
  return layout;
}

function gutterOf(width) {
  return width < 700 ? NARROW_GUTTER : WIDE_GUTTER;
}

function readColours() {
  const names = ["ink", "dim", "faint", "line", "band", "paper", "dialer", "acceptor", "error", "warning", "note", "chosen", "blocked"];
  const made = Object.fromEntries(names.map((n) => [n, colour(`--${n}`)]));
  made.stalls = CAUSES.map((cause) => colour(`--${cause}`));
  made.hues = Array.from({ length: HUES }, (_, i) => colour(`--hue-${i}`));
  return made;
}

// Strokes of each cause's hatching, in a tile of 6: causes differ by their pattern, not only by colour.
const HATCHES = [
  [[3, 0, 3, 6]], // no reply: upright
  [[-1, 7, 7, -1], [-1, 1, 1, -1], [5, 7, 7, 5]], // no credit: rising
  [[-1, -1, 7, 7], [5, -1, 7, 1], [-1, 5, 1, 7]], // slow reader: falling
  [[-1, -1, 7, 7], [-1, 7, 7, -1]], // head-of-line: crossed
  [[0, 3, 6, 3]], // transport: level
];

function hatch(context, ink, strokes) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6 * devicePixelRatio;
  const pen = tile.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.6;
  for (const [x1, y1, x2, y2] of strokes) {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / devicePixelRatio));
  return pattern;
}

function paintLanes(canvas) {
  const detail = view.detail;
  const layout = layoutOf(canvas, detail);
  const ratio = devicePixelRatio;
  if (canvas.width !== Math.round(layout.width * ratio) || canvas.height !== Math.round(layout.height * ratio)) {
    canvas.width = Math.round(layout.width * ratio);
    canvas.height = Math.round(layout.height * ratio);
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const colours = readColours();
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, layout.width, layout.height);
  paintAxis(pen, layout, colours);
  paintWireLabels(pen, colours);
  clipPlot(pen, layout, () => paintWire(pen, layout, colours, detail));
  const peak = Math.max(1, ...detail.lanes.map((lane) => Math.max(peakOf(lane.sides[0]), peakOf(lane.sides[1]))));
  detail.lanes.forEach((lane, i) => {
    const y = layout.top + i * layout.row;
    paintLabel(pen, layout, colours, lane, i, y);
    clipPlot(pen, layout, () => {
      paintLife(pen, layout, colours, lane, y);
      paintBytes(pen, layout, colours, lane, y, peak);
    });
  });
  clipPlot(pen, layout, () => {
    paintFrames(pen, layout, colours, detail);
    paintStalls(pen, layout, colours, detail);
    paintMarks(pen, layout, colours, detail);
    paintCursor(pen, layout, colours);
  });
  return layout;
}

const peakOf = (cells) => cells.reduce((most, cell) => Math.max(most, cell), 0);

function clipPlot(pen, layout, paint) {
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, layout.plot, layout.height);
  pen.clip();
  paint();
  pen.restore();
}

/** The step of the time axis: 1, 2 or 5 times a power of ten, about 100 pixels apart. */
function stepOf(plot) {
  const rough = ((view.to - view.from) * 100) / Math.max(100, plot);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (rough / power < 2 ? 2 : rough / power < 5 ? 5 : 10);
}

function paintAxis(pen, layout, colours) {
  const step = stepOf(layout.plot);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = Math.round(layout.x(at)) + 0.5;
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(x, AXIS - 4);
    pen.lineTo(x, layout.height);
    pen.stroke();
    pen.fillStyle = colours.dim;
    if (x > GUTTER + 14 && x < GUTTER + layout.plot - 6) pen.fillText(moment(at, step), x, AXIS / 2);
  }
}

/** Two strips, one per direction: its bytes divided among the streams. */
function paintWire(pen, layout, colours, detail) {
  for (const side of [0, 1]) {
    const y = AXIS + side * (WIRE + 2);
    pen.fillStyle = colours.band;
    pen.fillRect(GUTTER, y, layout.plot, WIRE);
    eachBucket(detail, layout, (bucket, x, wide) => {
      const cells = detail.lanes.map((lane) => Math.max(0, lane.sides[side][bucket]));
      const sum = cells.reduce((a, b) => a + b, 0);
      if (!sum) return;
      let low = y;
      cells.forEach((cell, i) => {
        if (!cell) return;
        const high = (WIRE * cell) / sum;
        const lane = detail.lanes[i];
        pen.fillStyle = lane.stream ? colours.hues[lane.colour % HUES] : colours.faint;
        if (view.stream >= 0 && (!lane.stream || lane.stream.index !== view.stream)) pen.globalAlpha = 0.18;
        pen.fillRect(x, low, wide, high);
        pen.globalAlpha = 1;
        low += high;
      });
    });
  }
}

function eachBucket(detail, layout, paint) {
  const first = Math.max(0, Math.floor(view.from / detail.width));
  const last = Math.min(BUCKETS - 1, Math.floor(view.to / detail.width));
  for (let bucket = first; bucket <= last; bucket++) {
    const x = layout.x(bucket * detail.width);
    paint(bucket, x, Math.max(1, layout.x((bucket + 1) * detail.width) - x));
  }
}

function paintWireLabels(pen, colours) {
  pen.font = "11.5px system-ui, sans-serif";
  pen.textAlign = "left";
  for (const side of [0, 1]) {
    pen.fillStyle = side ? colours.acceptor : colours.dialer;
    pen.fillText(side ? "← acceptor, by stream" : "→ dialer, by stream", 4, AXIS + side * (WIRE + 2) + WIRE / 2);
  }
}

function paintLabel(pen, layout, colours, lane, i, y) {
  const middle = y + layout.row / 2;
  const chosen = lane.stream && lane.stream.index === view.stream;
  if (chosen || (view.lane === i && document.activeElement === byId("lanes"))) {
    pen.fillStyle = colours.chosen;
    pen.fillRect(0, y, layout.width, layout.row);
  }
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  if (lane.stream) {
    pen.fillStyle = colours.hues[lane.colour % HUES];
    pen.fillRect(4, middle - 5, 4, 10);
    pen.fillStyle = colours.ink;
    pen.font = "600 11.5px ui-monospace, monospace";
    const key = clipText(pen, lane.stream.key, 70);
    pen.fillText(key, 14, middle);
    const used = pen.measureText(key).width;
    pen.font = "11.5px system-ui, sans-serif";
    pen.fillStyle = colours.dim;
    pen.fillText(clipText(pen, lane.stream.name || "", GUTTER - used - 32), 22 + used, middle);
  } else {
    pen.fillStyle = colours.dim;
    pen.font = "italic 11.5px system-ui, sans-serif";
    pen.fillText(lane.streams ? `${count(lane.streams)} others` : "no stream", 14, middle);
  }
  if (lane.stream) {
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillStyle = colours.dim;
    pen.fillText(sizeText(lane.stream.bytesD + lane.stream.bytesA), layout.width - 8, middle);
  }
}

function clipText(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let keep = text.length;
  while (keep > 0 && pen.measureText(`${text.slice(0, keep)}…`).width > room) keep--;
  return `${text.slice(0, keep)}…`;
}

/** A pale band from opening to end; where the sender was blocked, a line along its edge. */
function paintLife(pen, layout, colours, lane, y) {
  const middle = y + layout.row / 2;
  pen.fillStyle = colours.line;
  pen.fillRect(GUTTER, y + layout.row - 0.5, layout.plot, 0.5);
  if (!lane.stream) return;
  const { opened: open, firstD, firstA, closed } = lane.stream;
  const from = [open, firstD, firstA].filter((at) => at !== null).reduce((a, b) => Math.min(a, b), view.detail.end);
  const to = closed === null ? view.detail.end : closed;
  pen.fillStyle = colours.band;
  pen.fillRect(layout.x(from), y + 3, Math.max(1, layout.x(to) - layout.x(from)), layout.row - 6);
  pen.fillStyle = colours.faint;
  pen.fillRect(layout.x(from), middle - 0.5, layout.x(to) - layout.x(from), 1);
  pen.fillStyle = colours.blocked;
  for (const [side, first, last] of lane.blocked) {
    const x = layout.x(first * view.detail.width);
    const wide = Math.max(1, layout.x((last + 1) * view.detail.width) - x);
    pen.fillRect(x, side ? y + layout.row - 4 : y + 2, wide, 2);
  }
  if (closed !== null) paintEnd(pen, colours, lane.stream.ending, layout.x(closed), middle);
}

function paintEnd(pen, colours, ending, x, middle) {
  const clean = ending === "clean";
  pen.strokeStyle = clean ? colours.dim : colours.error;
  pen.lineWidth = 1.5;
  pen.beginPath();
  if (clean) {
    pen.moveTo(x, middle - 6);
    pen.lineTo(x, middle + 6);
  } else {
    for (const slope of [-1, 1]) {
      pen.moveTo(x - 4, middle - 4 * slope);
      pen.lineTo(x + 4, middle + 4 * slope);
    }
  }
  pen.stroke();
  pen.lineWidth = 1;
}

/** The dialer's bytes stand up from the middle, the acceptor's hang down. */
function paintBytes(pen, layout, colours, lane, y, peak) {
  const middle = y + layout.row / 2;
  const room = layout.row / 2 - 3;
  for (const side of [0, 1]) {
    pen.fillStyle = side ? colours.acceptor : colours.dialer;
    eachBucket(view.detail, layout, (bucket, x, wide) => {
      const cell = lane.sides[side][bucket];
      if (!cell) return;
      const high = cell < 0 ? 1.5 : Math.max(2, room * (cell / peak) ** 0.4);
      pen.fillRect(x, side ? middle : middle - high, wide, high);
    });
  }
}

/** Single frames, once a bucket is wide enough to separate them. */
function paintFrames(pen, layout, colours, detail) {
  if ((layout.plot * detail.width) / (view.to - view.from) < 8) return;
  for (const frame of detail.frames) {
    if (frame.at < view.from || frame.at > view.to) continue;
    const lane = detail.laneOf.get(frame.stream < 0 ? -1 : frame.stream);
    if (lane === undefined) continue;
    const middle = layout.top + lane * layout.row + layout.row / 2;
    const high = frame.payload ? layout.row / 2 - 3 : layout.row / 4;
    pen.fillStyle = colours.ink;
    pen.fillRect(Math.round(layout.x(frame.at)), frame.side ? middle : middle - high, 1, high);
  }
}

function paintStalls(pen, layout, colours, detail) {
  const patterns = colours.stalls.map((ink, cause) => hatch(pen, ink, HATCHES[cause]));
  for (const stall of detail.stalls) {
    const lane = detail.laneOf.get(stall.stream);
    if (lane === undefined) continue;
    const y = layout.top + lane * layout.row + (stall.side ? layout.row / 2 : 2);
    const x = layout.x(stall.at);
    const wide = Math.max(3, layout.x(stall.at + stall.lasted) - x);
    pen.fillStyle = patterns[stall.cause];
    pen.fillRect(x, y, wide, layout.row / 2 - 2);
    pen.strokeStyle = colours.stalls[stall.cause];
    pen.strokeRect(x + 0.5, y + 0.5, wide - 1, layout.row / 2 - 3);
  }
}

function paintMarks(pen, layout, colours, detail) {
  const inks = [colours.error, colours.warning, colours.note];
  for (const mark of [...detail.marks].sort((a, b) => b.level - a.level)) {
    const lane = detail.laneOf.get(mark.stream);
    if (mark.at === null) continue;
    const x = layout.x(mark.at);
    const top = lane === undefined ? AXIS + 2 * WIRE + 4 : layout.top + lane * layout.row;
    const tip = lane === undefined ? top - 4 : mark.side ? top + layout.row / 2 + 2 : top + layout.row / 2 - 2;
    const base = lane === undefined ? top + 5 : mark.side ? top + layout.row - 1 : top + 1;
    const half = mark.level === 2 ? 3 : 5;
    pen.beginPath();
    pen.moveTo(x, tip);
    pen.lineTo(x - half, base);
    pen.lineTo(x + half, base);
    pen.closePath();
    pen.fillStyle = inks[mark.level];
    pen.fill();
    pen.strokeStyle = colours.paper;
    pen.stroke();
  }
}

function paintCursor(pen, layout, colours) {
  if (view.cursor === null) return;
  const x = Math.round(layout.x(view.cursor)) + 0.5;
  pen.strokeStyle = colours.ink;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  pen.moveTo(x, AXIS);
  pen.lineTo(x, layout.height);
  pen.stroke();
  pen.globalAlpha = 1;
}
