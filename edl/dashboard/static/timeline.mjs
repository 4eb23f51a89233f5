// The time line: a band for each generation, as high as it has workers, and marks.

import { Component } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { brief, clock, counted, duration } from "./format.mjs";

const HEIGHT = 132;
const TOP = 26; // for the marks of events
const BOTTOM = 20; // for the times
const SPANS = [[0, "All"], [86400, "1 day"], [3600, "1 h"], [600, "10 min"]];
const TONES = [["bad", "failure"], ["warning", "warning"], ["change", "new leader"], ["plain", "other event"]];
const MARK_WIDTH = 10;
const MOST_TEXTS = 8; // of marks at one place
const WORDS = {
  start: "the job started", crash: "a crash was repaired", join: "workers joined",
  leave: "workers left", migrate: "workers moved", rebuild: "the ring was built again",
  several: "several generations", unknown: "the log does not say it any more",
};

/** Return the names of the generations of a band. */
export function named(band) {
  return band.first === band.last
    ? `Generation ${band.first}` : `Generations ${band.first} to ${band.last}`;
}

/**
 * Return the marks as they are drawn, at `x(at)`: those that would lie on each other are one mark,
 * which has the tone of the most serious one, and the text of all.
 */
function drawn(marks, x, now) {
  const groups = [];
  for (const mark of marks) {
    const at = x(mark.at_s);
    const rank = TONES.findIndex(([tone]) => tone === mark.tone);
    const text = `${clock(mark.at_s, now)} ${mark.kind.replaceAll("_", " ")}: ${mark.reason}`;
    const last = groups.at(-1);
    if (last && at - last.at < MARK_WIDTH) {
      last.rank = Math.min(last.rank, rank);
      last.texts.push(text);
    } else {
      groups.push({ at, rank, texts: [text] });
    }
  }
  return groups.map(({ at, rank, texts }) => ({ at, tone: TONES[rank][0], texts }));
}

function size(band) {
  return band.least_np === band.most_np
    ? counted(band.np, "worker") : `${band.least_np} to ${counted(band.most_np, "worker")}`;
}

/** Return a sentence about a band, for people who hear it. */
function told(band, now) {
  const lasted = duration((band.to_s ?? now) - band.from_s);
  const loss = band.loss_s ? `, lost ${brief(band.loss_s)}` : "";
  return `${named(band)}: ${size(band)} for ${lasted}; ${WORDS[band.cause]}${loss}`;
}

/**
 * Properties: `timeline`, `now`, `selected` (a generation), `onSelect(band)`.
 */
export class Timeline extends Component {
  constructor() {
    super();
    this.state = { span: 0, width: 800, active: null };
  }

  componentDidMount() {
    this.sizes = new ResizeObserver(([entry]) =>
      this.setState({ width: Math.max(240, entry.contentRect.width) }));
    this.sizes.observe(this.bands);
  }

  componentWillUnmount() { this.sizes.disconnect(); }

  shown() {
    const { timeline, now } = this.props;
    const to = timeline.ended_s ?? now;
    const began = timeline.began_s || to - 1;
    const from = this.state.span ? Math.max(began, to - this.state.span) : began;
    const bands = timeline.bands.filter((band) => (band.to_s ?? to) >= from);
    return { from, to: Math.max(to, from + 1), bands };
  }

  /** Move the active band by the arrow keys, and select it by Enter or Space. */
  key(event) {
    const { bands } = this.shown();
    if (!bands.length) return;
    const last = bands.length - 1;
    const found = bands.findIndex((band) => band.last === (this.state.active ?? this.props.selected));
    const at = found < 0 ? last : found;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
    if (event.key in moves) {
      const to = Math.min(last, Math.max(0, moves[event.key]));
      this.setState({ active: bands[to].last });
    } else if (event.key === "Enter" || event.key === " ") {
      this.props.onSelect(bands[at]);
    } else if (event.key === "Escape") {
      this.props.onSelect(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  render({ timeline, now, selected, onSelect }, { span, width, active }) {
    const { from, to, bands } = this.shown();
    const most = Math.max(1, ...bands.map((band) => band.most_np));
    const x = (at) => ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * width;
    const high = HEIGHT - TOP - BOTTOM;
    const current = active ?? selected;
    const marks = drawn(timeline.marks.filter((mark) => mark.at_s >= from && mark.at_s <= to), x, now);
    const lasts = timeline.ended_s === null ? to - (timeline.began_s || to) : 0;
    const spans = SPANS.filter(([seconds]) => seconds < Math.max(lasts, span + 1) || !seconds);
    return html`
      <div class="timeline">
        <div class="tools">
          <ul class="legend" aria-hidden="true">
            ${["join", "leave", "migrate", "crash"].map((cause) => html`
              <li><i class="dot cause-${cause}"></i>${cause}</li>`)}
            ${bands.some((band) => band.cause === "rebuild") && html`<li><i class="dot cause-rebuild"></i>ring built again</li>`}
            ${bands.some((band) => band.paused_s > 0) && html`<li><i class="swatch paused"></i>paused</li>`}
            ${TONES.filter(([tone]) => marks.some((mark) => mark.tone === tone)).map(([tone, text]) => html`
              <li><i class="dot event tone-${tone}"></i>${text}</li>`)}
          </ul>
          ${spans.length > 1 && html`<div class="choice" role="group" aria-label="Period">
            ${spans.map(([seconds, text]) => html`
              <button type="button" aria-pressed=${span === seconds}
                onClick=${() => this.setState({ span: seconds })}>${text}</button>`)}
          </div>`}
        </div>
        <div class="bands" ref=${(element) => { this.bands = element ?? this.bands; }} role="listbox" tabindex="0" aria-label="Generations"
          aria-activedescendant=${current === null ? undefined : `band-${current}`}
          onKeyDown=${(event) => this.key(event)}>
          <svg width=${width} height=${HEIGHT} viewBox="0 0 ${width} ${HEIGHT}" role="presentation">
            ${bands.map((band) => {
              const left = x(band.from_s);
              const wide = Math.max(1, x(band.to_s ?? to) - left);
              const tall = Math.max(3, (band.most_np / most) * high);
              const top = TOP + high - tall;
              const classes = [
                "band", `cause-${band.cause}`, band.paused_s > 0 && "paused",
                selected === band.last && "selected", current === band.last && "active",
              ].filter(Boolean).join(" ");
              return html`
                <g key=${band.last} id="band-${band.last}" class=${classes} role="option"
                  aria-selected=${selected === band.last} aria-label=${told(band, now)}
                  onClick=${() => { this.setState({ active: band.last }); onSelect(band); }}>
                  <title>${told(band, now)}</title>
                  <rect class="hit" x=${left} y=${TOP} width=${Math.max(3, wide)} height=${high} />
                  <rect class="fill" x=${left} y=${top} width=${Math.max(1, wide - 1)} height=${tall} />
                  ${wide > 26 && html`<text x=${left + wide / 2} y=${top + Math.min(tall - 6, 18)}
                    class="size">${band.np}</text>`}
                  ${!["start", "unknown"].includes(band.cause) && html`<circle cx=${left} cy=${TOP + high}
                    r=${3.5 + Math.min(4, 2 * (band.loss_s ?? 0))} class="cause" />`}
                </g>`;
            })}
            ${marks.map((mark) => html`
              <g class="mark tone-${mark.tone}">
                <title>${mark.texts.slice(0, MOST_TEXTS).join("\n")}${mark.texts.length > MOST_TEXTS ? `\nand ${mark.texts.length - MOST_TEXTS} more` : ""}</title>
                <path d="M ${mark.at} ${TOP - 4} l -5 -9 h 10 z" />
              </g>`)}
            <text class="time" x="0" y=${HEIGHT - 3}>${clock(from, now)}</text>
            <text class="time end" x=${width} y=${HEIGHT - 3}>${clock(to, now)}</text>
          </svg>
        </div>
      </div>`;
  }
}

const PARTS = [
  ["detect_s", "detect"], ["wait_s", "wait"], ["shutdown_s", "shutdown"], ["init_s", "init"],
  ["broadcast_s", "broadcast"], ["first_step_s", "first step"],
];

/** The parts and the reason of the chosen generation. */
export function Details({ band, cost, now, onClose }) {
  const workers = cost?.workers ?? [];
  const parts = (one) => PARTS.map(([key, name]) =>
    [name, key === "wait_s" && one.parts.role === "new" ? 0 : one.parts[key]]);
  const longest = Math.max(0.001, ...workers.map((one) =>
    parts(one).reduce((sum, [, seconds]) => sum + seconds, 0)));
  return html`
    <section class="details" aria-label="The chosen generation">
      <div class="head">
        <h3>${named(band)}</h3>
        <button type="button" class="close" onClick=${onClose} aria-label="Close">×</button>
      </div>
      <p class="reason">${band.reason}</p>
      <dl class="facts">
        <div><dt>workers</dt><dd>${size(band)}</dd></div>
        <div><dt>began</dt><dd>${clock(band.from_s, now)}</dd></div>
        <div><dt>lasted</dt><dd>${duration((band.to_s ?? now) - band.from_s)}${band.to_s === null ? " so far" : ""}</dd></div>
        <div><dt>because</dt><dd>${WORDS[band.cause]}</dd></div>
        <div><dt>training time lost</dt><dd>${band.loss_s === null ? (band.cause === "unknown" ? "not known" : "not known yet") : brief(band.loss_s)}</dd></div>
        ${band.paused_s > 0 && html`<div><dt>paused</dt><dd>${duration(band.paused_s)}</dd></div>`}
      </dl>
      ${workers.length > 0 && html`
        <div class="scroll" tabindex="0" role="region" aria-label="Parts of the switch by worker">
        <table class="parts">
          <caption>Parts of the switch, by worker${cost.size > workers.length
            ? ` (the slowest ${workers.length} of ${cost.size})` : ""}</caption>
          <thead><tr><th scope="col">worker</th><th scope="col" class="wide">time without a step</th>
            ${PARTS.map(([, name]) => html`<th scope="col" class="num">${name}</th>`)}</tr></thead>
          <tbody>${workers.map((one) => html`
            <tr><th scope="row">${one.worker}${one.parts.role === "new" ? html` <span class="muted">new</span>` : ""}</th>
              <td class="wide"><div class="bar" aria-hidden="true">${parts(one).map(([name, seconds]) => html`
                <i class="part-${name.replace(" ", "-")}" title="${name}: ${brief(seconds)}"
                  style=${{ width: `${(100 * seconds) / longest}%` }}></i>`)}</div></td>
              ${parts(one).map(([, seconds]) => html`<td class="num">${seconds ? brief(seconds) : html`<span class="muted">–</span>`}</td>`)}
            </tr>`)}</tbody>
        </table></div>`}
      ${!workers.length && band.cause !== "unknown" && html`<p class="muted">${band.first === band.last
        ? "The parts of this switch are not known: it is not logged until two steps after it."
        : "Several generations that are long ago are shown together."}</p>`}
    </section>`;
}
