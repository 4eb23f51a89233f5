// The loss and the learning rate over the steps, beside the changes of the ring.

import { Component } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { Chart, axis, colour } from "./charts.mjs";
import { significant, whole } from "./format.mjs";

const MOST_LINES = 5; // beside the first, across a logarithmic chart
const FEW = 100; // times: a wider range is drawn on a logarithmic scale

/** Return the largest and the smallest of the known values; undefined: there are none. */
function range(values) {
  const known = values.filter((one) => one !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : undefined;
}

/** Return powers of ten between `low` and `high`, at most six: the lines of a logarithmic axis. */
function powers(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.max(1, Math.ceil((last - first) / MOST_LINES));
  const found = [];
  for (let at = first; at <= last; at += every) found.push(10 ** at);
  return found;
}

/** Return the options of uPlot for one value over the steps; `now()` returns the newest section. */
function options(values, name, now) {
  const [low, high] = range(values) ?? [0, 1];
  const isLog = low > 0 && high > FEW * low;
  const linear = (_, least, most) => [Math.min(0, least), most > least || most > 0 ? most * 1.1 : 1];
  const lines = (plot) => {
    const { ctx, bbox } = plot;
    const line = (step, stroke, dash, text) => {
      const x = Math.round(plot.valToPos(step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      ctx.save();
      Object.assign(ctx, { strokeStyle: stroke, fillStyle: stroke, lineWidth: devicePixelRatio });
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `${11 * devicePixelRatio}px system-ui`;
      ctx.fillText(text, x + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
      ctx.restore();
    };
    const learning = now();
    for (const one of learning.changes) line(one.step, colour("--wait"), [4, 4], `${one.np}`);
    if (name === "loss") for (const step of learning.not_finite.slice(0, 1)) line(step, colour("--bad"), [], "not finite");
  };
  return {
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: false }, y: isLog ? { distr: 3 } : { range: linear } },
    axes: [
      axis({ size: 30, space: 70, grid: { show: false }, values: (_, all) => all.map((one) => whole(one)) }),
      axis({ size: 64, values: (_, all) => all.map((one) => (one === null ? "" : significant(one))), ...(isLog && { splits: (_, __, least, most) => powers(least, most), filter: (_, all) => all }) }),
    ],
    series: [{}, { stroke: colour(name === "loss" ? "--accent" : "--init"), width: 2, spanGaps: true, points: { show: false } }],
    hooks: { draw: [lines] },
  };
}

/** The two charts; `card` draws the frame of each. */
export class Learning extends Component {
  render({ learning, card }) {
    if (learning !== this.learning) {
      this.learning = learning;
      this.loss = [learning.step, learning.loss];
      this.rate = [learning.step, learning.learning_rate];
    }
    if (!learning.step.length) return null;
    const changes = learning.changes.length ? " A dashed line is a change of the ring, with its workers from then on." : "";
    const bad = learning.not_finite.length ? ` It was not finite (inf or nan) at step ${whole(learning.not_finite[0])}${learning.not_finite.length > 1 ? " and later" : ""}.` : "";
    const whose = learning.is_mean ? "Means over all workers, as the script logs them." : "Means over some batches of one worker; edl.log gives those of all workers.";
    const drawn = (name, data, note, empty) => html`
      <${card} name=${name} title=${name === "loss" ? "Loss" : "Learning rate"} note=${note}>
        ${range(data[1]) ? html`<${Chart} key="${name}${range(data[1])[0] > 0 && range(data[1])[1] > FEW * range(data[1])[0]}"
          make=${() => options(data[1], name, () => this.learning)} data=${data}
          label="${name === "loss" ? "Loss" : "Learning rate"} over the steps; now ${significant(data[1].at(-1))}" />`
          : html`<p class="muted empty">${empty}</p>`}
      <//>`;
    return html`
      ${drawn("loss", this.loss, `Over the steps. ${whose}${bad}${changes}`, "Not known: edl.log, or a mean with the name loss, tells it.")}
      ${drawn("rate", this.rate, `Over the steps; now ${significant(learning.learning_rate.at(-1))}.${changes}`, "Not known.")}`;
  }
}
