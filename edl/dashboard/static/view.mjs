// The sections of the page.

import { Component } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { folded } from "./events.mjs";
import { Chart, axis, colour, stacked, timeAxis } from "./charts.mjs";
import { Details, Timeline } from "./timeline.mjs";
import { Word, WordList } from "./words.mjs";
import { ago, brief, bytes, clock, counted, duration, number, percent, whole } from "./format.mjs";

const PARTS = [["compute_s", "compute"], ["data_s", "data"], ["reduce_s", "reduce"], ["wait_s", "wait"]];
const TONES = [["bad", "Failures"], ["warning", "Warnings"], ["change", "Changes"], ["plain", "Other"]];

export function Card({ name, title, note, wide, children }) {
  return html`
    <section class="card ${wide ? "wide" : ""}" aria-labelledby="${name}-title">
      <h2 id="${name}-title">${title}</h2>
      ${note && html`<p class="note">${note}</p>`}
      ${children}
    </section>`;
}

export function Fact({ name, children, more }) {
  return html`<div><dt>${name}</dt><dd>${children}${more && html`<small>${more}</small>`}</dd></div>`;
}

/** The header: how the job is, in words and in its most important numbers. */
export function Header({ header: now, now: at, stale }) {
  const limits = now.max_np === null ? `from ${now.min_np}` : `of ${now.min_np} to ${now.max_np}`;
  const wanted = now.wanted && now.wanted !== now.np ? `, ${now.wanted} wanted` : "";
  const over = ["finished", "stopped", "failed"].includes(now.state);
  return html`
    <header class="job">
      <div class="name">
        <h1>${now.job}</h1>
        <p class="state tone-${stale ? "over" : now.tone}" role="status"><i class="dot" aria-hidden="true"></i>${now.words}${stale && html` <small>at ${clock(at)}</small>`}</p>
      </div>
      ${now.reason && html`<p class="reason">${now.reason}</p>`}
      ${now.policy && html`<p class="reason muted">Policy: ${now.policy}</p>`}
      <dl class="stats">
        <${Fact} name="workers" more="${limits}${wanted}">${over ? "0" : now.np}<//>
        <${Fact} name=${html`<${Word} name="leader" />`} more=${html`<${Word} name="term" /> ${now.term}${now.led_s > 0 && `, since ${clock(now.led_s, at)}`}`}>${now.leader ?? "–"}<//>
        <${Fact} name=${html`<${Word} name="generation" />`} more=${html`of the <${Word} name="ring" />`}>${now.generation}<//>
        <${Fact} name=${html`<${Word} name="step" />`} more="epoch ${now.epoch}${stale ? `, at ${clock(at)}` : ""}">${whole(now.step)}<//>
        <${Fact} name=${html`<${Word} name="samples/s" />`} more=${html`over the last 3 s${now.median_step_s > 0 && html`; <${Word} name="step time" /> ${brief(now.median_step_s)}`}`}>${over ? "–" : number(now.samples_per_s)}<//>
        <${Fact} name=${html`<${Word} name="goodput" />`} more=${`${duration(now.lost_s)} lost${now.is_cut ? ` since ${clock(now.since_s, at)}` : ""}`}>${percent(now.goodput)}<//>
        <${Fact} name=${over ? "lasted" : "time left"} more=${over ? (now.is_cut ? "at least" : "") : now.eta_s === null ? "nobody knows" : `until ${clock(at + now.eta_s, at)}`}>
          ${over ? duration(now.ended_s === null ? null : now.ended_s - now.since_s) : duration(now.eta_s)}<//>
      </dl>
      <${WordList} />
    </header>`;
}

/** What happened to the job, the newest first: what, why, what to do, and what followed. */
export function Incidents({ incidents, now }) {
  if (!incidents.length) return null;
  const open = incidents.filter((one) => one.tone !== "over").length;
  const note = open ? "The newest first. A faded one is over: the job has recovered from it." : "The newest first. The job has recovered from all of it.";
  return html`
    <${Card} name="incidents" title="What happened" note=${note} wide>
      <ol class="incidents">${incidents.map((one) => html`
        <li key=${one.number} class="tone-${one.tone}">
          <p class="when"><time datetime=${new Date(1000 * one.at_s).toISOString()}>${clock(one.at_s, now)}</time>
            <small>${ago(now - one.at_s)}, step ${whole(one.step)}</small>
            ${one.until_s !== null && html`<small>over at ${clock(one.until_s, now)}, after ${duration(one.until_s - one.at_s)}</small>`}</p>
          <div>
            <p class="what"><strong>${one.what}</strong></p>
            <dl class="explanation">
              <div><dt>Why</dt><dd>${marked(one.why)}</dd></div>
              <div><dt>What to do</dt><dd>${marked(one.advice)}</dd></div>
              ${one.since && html`<div><dt>Since then</dt><dd>${marked(one.since)}</dd></div>`}
            </dl>
          </div>
        </li>`)}</ol>
    <//>`;
}

function Explanation({ event }) {
  return html`
    <dl class="explanation">
      <div><dt>meaning</dt><dd>${marked(event.meaning)}</dd></div>
      <div><dt>usual causes</dt><dd>${marked(event.causes)}</dd></div>
      <div><dt>what to do</dt><dd>${marked(event.advice)}</dd></div>
    </dl>`;
}

/** Return `text` with its parts in backquotes as code. */
function marked(text) {
  return text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));
}

/** The time line with the generation that was chosen. */
export function Generations({ timeline, now, chosen, cost, onSelect }) {
  const note = timeline.bands.length
    ? html`Each band is one <${Word} name="ring" /> of workers (a <${Word} name="generation" />), as high as it has workers. Where two bands meet, the ring has changed: the dot is that <${Word} name="switch" />; the larger, the longer training stood still. Choose a band to see the parts. A triangle is an event, or several at nearly the same time, in the colour of the worst: point at it to read them, or look below.`
    : timeline.is_cut ? "No ring was built since." : "There is no ring yet.";
  const cut = timeline.is_cut
    ? `The log does not have the events before ${clock(timeline.began_s, now)} any more: the time line and goodput begin there. ` : "";
  const band = timeline.bands.find((one) => chosen !== null && one.first <= chosen && chosen <= one.last);
  return html`
    <${Card} name="generations" title="Generations" note=${[cut, note]} wide>
      <${Timeline} timeline=${timeline} now=${now} selected=${band?.last ?? null} onSelect=${onSelect} />
      ${band && html`<${Details} band=${band} cost=${cost} now=${now} onClose=${() => onSelect(null)} />`}
    <//>`;
}

function Legend({ items }) {
  return html`<ul class="legend" aria-hidden="true">${items.map(([name, text]) => html`
    <li><i class="swatch part-${name}"></i>${text ?? name}</li>`)}</ul>`;
}

/** The workers beside their median. */
export function Workers({ workers }) {
  const full = workers.step_s || 1;
  const stages = Object.entries(workers.stages).map(([stage, count]) => `${count} ${stage}`).join(", ");
  const few = workers.rows.length < workers.total ? `; ${workers.rows.length} of them shown, the unusual and the slow ones` : "";
  const note = workers.total
    ? `${stages || "none"}, on ${counted(workers.host_count, "host")}${few}. ${workers.timed
      ? `A full bar is a step; the line is the median of computing and loading, ${brief(workers.own_s)}. Means over 10 steps, up to 15 s older than the header.`
      : "Where their time goes is known when edl's loaders feed the script, after some steps."}`
    : "No worker is there now.";
  const devices = workers.rows.some((row) => row.device !== null);
  return html`
    <${Card} name="workers" title="Workers" note=${note} wide>
      ${workers.timed > 0 && html`<${Legend} items=${PARTS.map(([, name]) => [name])} />`}
      ${workers.total > 0 && html`
      <div class="scroll" tabindex="0" role="region" aria-label="Table of workers">
        <table class="workers">
          <thead><tr><th scope="col">worker</th><th scope="col">rank</th><th scope="col">host</th>
            ${devices && html`<th scope="col" class="num">device</th>`}
            <th scope="col">stage</th><th scope="col" class="wide">one step</th>
            <th scope="col" class="num"><${Word} name="own time" /></th><th scope="col" class="num"><abbr title="The samples of a worker in a second of its own time, relative to the median of all workers">speed</abbr></th></tr></thead>
          <tbody>${workers.rows.map((row) => {
            const known = row.compute_s !== null;
            const own = known ? row.compute_s + row.data_s : null;
            const said = PARTS.map(([key, name]) => `${name} ${brief(row[key])}`).join(", ");
            return html`
              <tr key=${row.worker} class="stage-${row.stage} ${row.is_slow ? "slow" : ""}">
                <th scope="row">${row.worker}${row.leads ? html` <span class="badge">leads</span>` : ""}</th>
                <td>${row.rank ?? "–"}</td><td>${row.host}<span class="muted">:${row.slot}</span></td>
                ${devices && html`<td class="num">${row.device ?? "–"}</td>`}
                <td><span class="stage">${row.stage}</span></td>
                <td class="wide">${known ? html`
                  <div class="bar" role="img" aria-label=${said} title=${said}>
                    ${PARTS.map(([key, name]) => html`<i class="part-${name}" style=${{ width: `${(100 * row[key]) / full}%` }}></i>`)}
                    <b class="median" style=${{ left: `${(100 * workers.own_s) / full}%` }}></b>
                  </div>` : ""}${row.note && html`<small>${row.note}</small>`}</td>
                <td class="num">${brief(own)}</td>
                <td class="num">${row.speed === null ? "–" : `${row.speed.toFixed(2)}×`}</td>
              </tr>`;
          })}</tbody>
        </table>
      </div>`}
      ${[...Object.entries(workers.evicted).map(([who, why]) => [`${who} evicted`, why]),
        ...Object.entries(workers.disabled_slots).map(([slot, why]) => [`slot ${slot} disabled`, why])]
        .map(([what, why]) => html`<p class="aside"><strong>${what}</strong> ${why}</p>`)}
    <//>`;
}

function speedOptions() {
  return {
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] }, np: { range: (_, low, high) => [0, Math.max(2, high + 1)] } },
    axes: [timeAxis(), axis({ size: 56, values: (_, all) => all.map((one) => number(one)) })],
    series: [{}, { stroke: colour("--accent"), fill: colour("--accent-wash"), width: 2, points: { show: false } }],
  };
}

function partsOptions() {
  const series = PARTS.map(([, name]) => ({
    stroke: colour(`--${name}`), fill: colour(`--${name}-wash`), width: 1.5, points: { show: false },
  }));
  return {
    legend: { show: false },
    cursor: { y: false, points: { show: false } },
    scales: { y: { range: (_, low, high) => [0, (high || 0.001) * 1.1] } },
    axes: [timeAxis(), axis({ size: 56, values: (_, all) => all.map(brief) })],
    // The largest sum is drawn first, so that the others lie on it.
    series: [{}, ...series.reverse()],
  };
}

/** Throughput, and the parts of a step, over time. */
export class Speed extends Component {
  render({ speed }) {
    if (speed !== this.speed) {
      this.speed = speed;
      this.rate = [speed.at_s, speed.samples_per_s];
      this.parts = [speed.at_s, ...stacked(PARTS.map(([key]) => speed[key])).reverse()];
    }
    const last = speed.samples_per_s.at(-1);
    const timed = speed.compute_s.some((one) => one !== null);
    const said = PARTS.map(([key, name]) => `${name} ${brief(speed[key].at(-1))}`).join(", ");
    return html`
      <${Card} name="throughput" title="Throughput" note="Samples a second of all workers together, over 3 s as in the header${speed.period_s > 1 ? `; a point is the mean over ${duration(speed.period_s)}` : ""}.">
        ${speed.at_s.length > 1 ? html`<${Chart} make=${speedOptions} data=${this.rate}
          label="Throughput over time; now ${number(last)} samples a second" />`
          : html`<p class="muted empty">Nothing was measured yet.</p>`}
      <//>
      <${Card} name="step" title="Parts of a step" note="The mean over the workers. Waiting is for slower ones. A gap: they were not known then.">
        ${timed ? html`<${Legend} items=${PARTS.map(([, name]) => [name])} />
          <${Chart} make=${partsOptions} data=${this.parts} label="Parts of a step over time; now ${said}" />`
          : html`<p class="muted empty">Not known: it takes some steps with edl's loaders.</p>`}
      <//>`;
  }
}

/** What the ledger has counted. */
export function Ledger({ ledger, now }) {
  const { work } = ledger;
  const part = ledger.total ? ledger.done / ledger.total : 0;
  return html`
    <${Card} name="ledger" title="Ledger" note="The samples of epoch ${ledger.epoch}, as all workers have written them down. At each step they compare a checksum of that; where it differs, no update is applied." wide>
      ${ledger.total > 0 && html`
        <div class="meter" role="progressbar" aria-label="Samples of this epoch" aria-valuemin="0" aria-valuemax=${ledger.total} aria-valuenow=${ledger.done}>
          <i style=${{ width: `${100 * part}%` }}></i></div>
        <p class="meter-text"><span>${whole(ledger.done)} of ${whole(ledger.total)} samples</span><span>${percent(part, 0)}</span></p>`}
      <dl class="facts">
        <div><dt>trained</dt><dd>${whole(ledger.done)}</dd></div>
        ${ledger.untrained > 0 && html`<div><dt>left out by the script</dt><dd>${whole(ledger.untrained)}</dd></div>`}
        <div><dt>until the end</dt><dd>${ledger.left === null ? "not known" : counted(ledger.left, "sample")}</dd></div>
        <div><dt>checkpoint</dt><dd>${ledger.saved_step < 0 ? "none" : `step ${whole(ledger.saved_step)}`}
          ${work.saved_at_s > 0 && html` <small>${ago(now - work.saved_at_s)}, ${bytes(work.bytes)}, paused ${brief(work.capture_s)}</small>`}</dd></div>
        ${work.resumed > 0 && html`<div><dt>resumed</dt><dd>${counted(work.resumed, "time")}${work.lost_steps > 0 ? `, ${counted(work.lost_steps, "step")} trained again` : ""}</dd></div>`}
      </dl>
    <//>`;
}

/** Throughput by size, and what another size would bring. */
export class Scaling extends Component {
  render({ scaling }) {
    if (scaling !== this.scaling) {
      this.scaling = scaling;
      const sizes = [...new Set([scaling.fitted, scaling.measured, scaling.profiled].flat().map((one) => one.np))].sort((a, b) => a - b);
      const column = (points) => sizes.map((np) => points.find((one) => one.np === np)?.samples_per_s ?? null);
      this.data = [sizes, column(scaling.fitted), column(scaling.measured), column(scaling.profiled)];
    }
    const points = scaling.measured.length + scaling.profiled.length;
    const costs = scaling.change_measured
      ? `At a change of size training stood still for ${brief(scaling.change_s)}.`
      : `No change of size was measured yet; a stand-still of ${brief(scaling.change_s)} is assumed.`;
    const rest = scaling.room ? ` The hosts have room for ${counted(scaling.room, "worker")}.` : "";
    const profiled = scaling.profiled.length ? ", an open one is from edl profile" : "";
    const model = scaling.fitted.length ? ", the dashed line is the model by which the job's policy decides" : "";
    const make = () => ({
      legend: { show: false },
      cursor: { y: false, points: { size: 7 } },
      scales: {
        x: { time: false, range: (_, low, high) => [Math.max(0, low - 0.5), high + 0.5] },
        y: { range: (_, low, high) => [0, Math.max(1, high * 1.12)] },
      },
      axes: [
        axis({ size: 30, values: (_, all) => all.map((one) => (Number.isInteger(one) ? one : "")), grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100] }),
        axis({ size: 56, values: (_, all) => all.map((one) => number(one)) }),
      ],
      series: [
        {},
        { stroke: colour("--accent"), width: 2, dash: [6, 4], spanGaps: true, points: { show: false } },
        { stroke: colour("--accent"), width: 0, points: { show: true, size: 9, fill: colour("--accent"), stroke: colour("--card") } },
        { stroke: colour("--wait"), width: 0, points: { show: true, size: 9, fill: colour("--card"), stroke: colour("--compute"), width: 2 } },
      ],
    });
    return html`
      <${Card} name="scaling" title="Another size" note="R(k), the samples a second of k workers. A dot is the mean over all steps measured with k workers (the header has the last 3 s)${profiled}${model}. ${costs}${rest}" wide>
        <div class="split">
          ${points > 0 ? html`<${Chart} make=${make} data=${this.data}
            label="Throughput by number of workers; ${scaling.measured.map((one) => `${one.np}: ${number(one.samples_per_s)}`).join(", ")}" />`
            : html`<p class="muted empty">Nothing was measured yet; it takes ten steps of edl's loaders.</p>`}
          ${scaling.forecasts.length > 0 && html`
            <div class="scroll" tabindex="0" role="region" aria-label="What a resize brings">
            <table><caption>${scaling.void ? `Which size is faster now, these means do not tell: ${scaling.void}` : "What a resize would bring and cost, by the means at each size. The time left is that of the header, scaled"}</caption>
              <thead><tr><th scope="col">workers</th><th scope="col" class="num">mean samples/s</th><th scope="col" class="num">change</th>
                <th scope="col" class="num">each worker</th><th scope="col" class="num">time left</th><th scope="col" class="num">pays after</th></tr></thead>
              <tbody>${scaling.forecasts.map((one) => html`
                <tr class=${one.np === scaling.np ? "current" : ""}>
                  <th scope="row">${one.np}${one.np === scaling.np ? html` <span class="badge">now</span>` : ""}</th>
                  <td class="num">${number(one.samples_per_s)} <small>${one.measured ? "" : "fitted"}</small></td>
                  <td class="num">${one.np === scaling.np || one.gain === null ? "–" : `${one.gain >= 1 ? "+" : "−"}${Math.abs(100 * (one.gain - 1)).toFixed(0)} %`}</td>
                  <td class="num">${one.efficiency === null ? "–" : percent(one.efficiency, 0)}</td>
                  <td class="num">${duration(one.eta_s)}</td>
                  <td class="num">${one.np === scaling.np || one.gain === null ? "–" : one.pays_after_s === null ? "never" : brief(one.pays_after_s)}</td>
                </tr>`)}</tbody></table></div>`}
        </div>
      <//>`;
  }
}

/**
 * The events of an EventList, and its filter.
 *
 * `kinds` has the tone and the name of each kind; those with a dot are `dotted`. `drawn(event)`
 * returns the `tone`, `title`, `text` and `place` of the row of an event, or of a list of `folded`.
 * Whoever looks for words sees each event.
 */
export function EventCard({ events: list, kinds, dotted, counts, unreadable, note, hint, now, drawn }) {
  const { events, filter } = list;
  const toggle = (tone) => {
    const tones = filter.tones.includes(tone) ? filter.tones.filter((one) => one !== tone) : [...filter.tones, tone];
    list.choose({ ...filter, tones });
  };
  const skipped = unreadable ? ` ${counted(unreadable, "event")} of a newer edl cannot be read and ${unreadable === 1 ? "is" : "are"} left out.` : "";
  return html`
    <${Card} name="events" title="Events" note="${note}${skipped}" wide>
      <div class="tools">
        <div class="choice" role="group" aria-label="Kinds of events">
          ${kinds.map(([tone, text]) => html`
            <button type="button" aria-pressed=${filter.tones.includes(tone)} onClick=${() => toggle(tone)}>
              ${dotted && html`<i class="dot tone-${tone}" aria-hidden="true"></i>`}${text} <small>${counts[tone] ?? 0}</small></button>`)}
        </div>
        <input type="search" placeholder=${hint} aria-label="Filter events by words" maxlength="200"
          value=${filter.text} onInput=${(event) => list.choose({ ...filter, text: event.target.value })} />
      </div>
      <ol class="events">${(filter.text ? events : folded(events)).map((row, at, rows) => {
        const { tone, title, text, place } = drawn(row);
        const newest = Array.isArray(row) ? row[0] : row;
        // A list that is open stays so while it grows at one end, and loses events at the other.
        const key = Array.isArray(row) ? `before ${rows[at - 1]?.number}` : row.number;
        return html`
          <li key=${key} class="tone-${tone}">
            <time datetime=${new Date(1000 * newest.at_s).toISOString()}>${clock(newest.at_s, now)}</time>
            <span class="kind">${title}</span>
            <div class="what">${text}</div>
            <span class="where">${place}</span>
          </li>`;
      })}</ol>
      ${!events.length && html`<p class="muted empty">${list.isOld ? "Reading the events…" : "No event matches."}</p>`}
      ${list.more && html`<button type="button" class="more" onClick=${() => list.showMore()}>Show more</button>`}
    <//>`;
}

/** The events of a job; `events` is an EventList. */
export function Events({ events, counts, unreadable, now }) {
  const drawn = (row) => (Array.isArray(row) ? several(row) : single(row));
  const several = (row) => ({
    ...single(row[0]),
    text: html`<details><summary>${counted(row.length, "checkpoint")}, steps ${whole(row.at(-1).step)} to ${whole(row[0].step)}</summary>
      ${row.map((one) => html`<small key=${one.number}>${clock(one.at_s, now)} ${one.reason}</small>`)}</details>`,
  });
  const single = (one) => ({
    tone: one.tone,
    title: one.kind.replaceAll("_", " "),
    text: html`${one.reason}${one.cost && html`<small>${one.cost}</small>`}
      ${one.advice && html`<details><summary>Why, and what to do</summary><${Explanation} event=${one} /></details>`}`,
    place: `gen ${one.generation} · step ${whole(one.step)}`,
  });
  return html`<${EventCard} events=${events} kinds=${TONES} dotted counts=${counts} unreadable=${unreadable} now=${now} drawn=${drawn}
    note="Each decision with its reason, the newest first." hint="Filter by words, such as w3" />`;
}

/** The question for the token. */
export function Token({ wrong, what, onToken }) {
  const submit = (event) => {
    event.preventDefault();
    onToken(event.target.elements.token.value);
  };
  return html`
    <main class="ask"><h1>edl</h1>
      <p>${wrong ? `The token is not that of this ${what}.` : `This page shows a ${what} to whoever has its token.`}
        ${" "}<code>edl dashboard</code> prints the address that has it.</p>
      <form onSubmit=${submit}>
        <label for="token">Address or token</label>
        <input id="token" name="token" type="password" autocomplete="off" required />
        <button type="submit">Show</button>
      </form></main>`;
}
