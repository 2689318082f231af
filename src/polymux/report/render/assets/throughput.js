// Throughput of both directions over time, above the lanes and on their time scale.

let chart = null;
let ownZoom = false;

function startThroughput() {
  watch((what) => {
    if (!view.detail) return;
    if (what === "session" || what === "theme") drawThroughput();
    else if (what === "window") zoomThroughput();
    else if (what === "cursor") pointThroughput();
  });
  new ResizeObserver(() => {
    const width = byId("throughput").clientWidth;
    if (chart && width && chart.width !== width) {
      if (gutterOf(width) === GUTTER) chart.setSize({ width, height: 132 });
      else drawThroughput();
    }
  }).observe(byId("throughput"));
}

function drawThroughput() {
  const box = byId("throughput");
  const detail = view.detail;
  if (chart) chart.destroy();
  chart = null;
  if (!box.clientWidth) return;
  GUTTER = gutterOf(box.clientWidth);
  const scale = 8e6 / detail.width; // bytes per bucket to bits per second
  const last = Math.max(1, Math.min(BUCKETS, Math.ceil(detail.end / detail.width)));
  const at = Array.from({ length: last + 1 }, (_, i) => i * detail.width);
  // One point more than buckets, so that the step of the last bucket is drawn to its end.
  const series = detail.total.map((cells) => at.map((_, i) => cells[Math.min(i, last - 1)] * scale));
  chart = new uPlot({
    width: box.clientWidth,
    height: 132,
    padding: [8, MARGIN, 8, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { show: false } },
    scales: { x: { time: false, range: () => [view.from, view.to] }, y: { range: (_, __, most) => [0, Math.max(1, most) * 1.08] } },
    axes: [
      { show: false },
      {
        size: GUTTER, side: 3, stroke: colour("--dim"), font: "11px system-ui, sans-serif",
        grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, space: 28, values: (_, ticks) => ticks.map((bits) => (bits ? rateText(bits) : "0")),
      },
    ],
    series: [{}, curve("--dialer", "--dialer-pale"), curve("--acceptor", "--acceptor-pale")],
    hooks: {
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const from = u.posToVal(u.select.left, "x");
        const to = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        chooseWindow(from, to);
      }],
      setCursor: [(u) => {
        if (ownZoom || u.cursor.left === undefined || u.cursor.event === undefined || u.cursor.event === null) return;
        view.cursor = u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, "x");
        paintSoon();
      }],
    },
  }, [at, ...series], box);
}

function curve(stroke, pale) {
  return { stroke: colour(stroke), fill: colour(pale), width: 1.25, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) };
}

function zoomThroughput() {
  if (!chart) return;
  ownZoom = true;
  chart.setScale("x", { min: view.from, max: view.to });
  ownZoom = false;
}

function pointThroughput() {
  if (!chart) return;
  ownZoom = true;
  const left = view.cursor === null ? -10 : chart.valToPos(view.cursor, "x");
  chart.setCursor({ left, top: 10 });
  ownZoom = false;
}
