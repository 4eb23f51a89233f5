// The sections of the page of a cluster, but for its chart.

import { ClusterJobActions, HostAction } from "./actions.mjs";
import { html } from "./html.mjs";
import { clock, counted, duration, number, whole } from "./format.mjs";
import { jobAddress } from "./token.mjs";
import { Card, EventCard, Fact } from "./view.mjs";

const STATES = [
  ["running", "Running"], ["starting", "Starting"], ["queued", "Waiting"], ["halting", "Halting"], ["halted", "Halted"],
  ["finished", "Finished"], ["failed", "Failed"], ["deleted", "Deleted"],
];
const TONE = { running: "good", starting: "warning", halting: "warning", failed: "bad" };
const KINDS = [["bad", "Failures"], ["user", "Asked by users"], ["host", "Hosts"], ["plain", "Other"]];

/** The notice that no controller leads, and since when; nothing while one does. */
export function Leaderless({ header, now }) {
  if (!(header?.leaderless_s > 0)) return null;
  return html`<p class="notice tone-bad">No controller has led since ${clock(header.leaderless_s, now)}, as far as this page has seen. Running jobs train on; none starts, and no slots change hands. The reasons below are ${header.reasons_s ? `from ${clock(header.reasons_s, now)}` : "not known"}. <code>edl cluster start --name ${header.cluster}</code> starts a controller.</p>`;
}

function sum(jobs, ...states) {
  return states.reduce((total, state) => total + (jobs[state] ?? 0), 0);
}

/** The header: how the cluster is, in words and in its most important numbers. */
export function ClusterHeader({ header: now, now: at, stale }) {
  const parameters = Object.entries(now.parameters).map(([key, value]) => `${key}=${value}`).join(" ");
  return html`
    <header class="job">
      <div class="name">
        <h1>${now.cluster}</h1>
        <p class="state tone-${stale ? "over" : now.tone}" role="status"><i class="dot" aria-hidden="true"></i>${now.words}${stale && html` <small>at ${clock(at)}</small>`}</p>
      </div>
      ${now.viewer && html`<p class="reason muted">Hosts, queues and the jobs of others are shown to whoever has the secret of the cluster.</p>`}
      ${now.problem && html`<p class="reason">${now.problem}</p>`}
      ${now.fleet && html`<p class="reason muted">${now.fleet}</p>`}
      <dl class="stats">
        <${Fact} name="slots in use" more=${now.slots === null ? "" : `of ${whole(now.slots)}`}>${whole(now.used)}<//>
        <${Fact} name="running" more=${sum(now.jobs, "starting", "halting") ? `${sum(now.jobs, "starting")} starting, ${sum(now.jobs, "halting")} halting` : "jobs"}>${whole(sum(now.jobs, "running"))}<//>
        <${Fact} name="waiting" more=${sum(now.jobs, "halted") ? `${sum(now.jobs, "halted")} halted by users` : "jobs"}>${whole(sum(now.jobs, "queued"))}<//>
        <${Fact} name="ended" more=${sum(now.jobs, "failed") ? `${sum(now.jobs, "failed")} failed` : "jobs"}>${whole(sum(now.jobs, "finished", "failed", "deleted", "ended"))}<//>
        ${now.hosts !== null && html`<${Fact} name="hosts" more=" ">${whole(now.hosts)}<//>`}
        ${!now.viewer && html`<${Fact} name="policy" more=${parameters || " "}>${now.policy}<//>`}
        ${!now.viewer && html`<${Fact} name="controllers" more=${now.leader ? `${now.leader}, term ${now.term}` : "none leads"}>${whole(now.controllers)}<//>`}
      </dl>
    </header>`;
}

function limits(job) {
  return job.min === job.max ? String(job.max) : `${job.min}–${job.max}`;
}

function outcome(job) {
  return job.result ?? job.state;
}

function JobDetails({ job, facts, now, token, actions }) {
  const hosts = Object.entries(facts?.hosts ?? {}).map(([host, slots]) => `${host}: ${slots}`).join(", ");
  const labels = Object.entries(facts?.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
  const waits = facts && facts.not_before_s > now;
  return html`
    <dl class="facts">
      <div><dt>submitted</dt><dd>${clock(job.submitted_s, now)}</dd></div>
      ${job.started_s > 0 && html`<div><dt>started</dt><dd>${clock(job.started_s, now)}</dd></div>`}
      ${job.ended_s > 0 && html`<div><dt>ended</dt><dd>${clock(job.ended_s, now)}</dd></div>`}
      <div><dt>asks for</dt><dd>${counted(job.np, "worker")}, ${limits(job)}</dd></div>
      <div><dt>priority, queue</dt><dd>${job.priority}, ${job.queue}</dd></div>
      <div><dt>runs</dt><dd>${whole(job.runs)}${job.failures > 0 ? `, ${job.failures} failed` : ""}</dd></div>
      ${job.surplus > 0 && html`<div><dt>beyond the quota</dt><dd>${counted(job.surplus, "slot")}</dd></div>`}
      ${facts && html`<div><dt>slot hours</dt><dd>${number(facts.slot_s / 3600)}</dd></div>`}
      ${hosts && html`<div><dt>where</dt><dd>${hosts}</dd></div>`}
      ${labels && html`<div><dt>only hosts with</dt><dd>${labels}</dd></div>`}
      ${facts?.after.length > 0 && html`<div><dt>after</dt><dd>${facts.after.join(", ")}</dd></div>`}
      ${waits && html`<div><dt>not started again before</dt><dd>${clock(facts.not_before_s, now)}</dd></div>`}
    </dl>
    ${facts && html`<p class="aside"><code>${facts.command.join(" ")}</code></p>`}
    <p class="aside">${job.runs > 0
      ? html`<a href=${jobAddress(job.name, token)}>Workers, speed and events of ${job.name}</a>`
      : "It was never started, so it has no workers yet."}</p>
    <${ClusterJobActions} actions=${actions} job=${job} />`;
}

function JobRow({ job, now, queues, chosen, facts, token, actions, colours, onChoose }) {
  const isOpen = chosen === job.name;
  const state = outcome(job);
  return html`
    <tr key=${job.name} class=${isOpen ? "current" : ""}>
      <th scope="row"><button type="button" class="plain" aria-expanded=${isOpen} onClick=${() => onChoose(job.name)}>
        <i class="swatch hue-${colours.of(job.name)}" aria-hidden="true"></i>${job.name}</button></th>
      <td><span class="word tone-${TONE[state] ?? "plain"}">${state}</span></td>
      <td class="num">${job.slots}<span class="muted">/${limits(job)}</span></td>
      <td class="num extra">${job.priority}</td>
      ${queues && html`<td class="extra">${job.queue}</td>`}
      <td class="num extra">${duration((job.ended_s || now) - job.submitted_s)}</td>
      <td class="wide">${job.reason}${job.wanted !== "run" && !job.ended_s && html`<small>users want it ${job.wanted === "halt" ? "halted" : "gone"}</small>`}</td>
    </tr>
    ${isOpen && html`<tr class="opened"><td colspan=${queues ? 7 : 6}><${JobDetails} job=${job} facts=${facts?.job === job.name ? facts : null} now=${now} token=${token} actions=${actions} /></td></tr>`}`;
}

/** The jobs, those with slots first, then the queue; `jobs` is a JobList. */
export function ClusterJobs({ jobs: list, header, now, chosen, facts, token, actions, colours, onChoose }) {
  const { filter } = list;
  const toggle = (state) => {
    const states = filter.states.includes(state) ? filter.states.filter((one) => one !== state) : [...filter.states, state];
    list.choose({ states });
  };
  const queues = header.queues.length > 1 || header.queues.some((one) => one !== "default");
  const present = STATES.filter(([state]) => header.jobs[state] || filter.states.includes(state));
  return html`
    <${Card} name="jobs" title="Jobs" note="Those that have slots first, then the queue in its order, with the leader's reason for each. Choose one for its details and its own page." wide>
      <div class="tools">
        <div class="choice" role="group" aria-label="States of jobs">
          ${present.map(([state, text]) => html`<button type="button" aria-pressed=${filter.states.includes(state)} onClick=${() => toggle(state)}>
            ${text} <small>${header.jobs[state] ?? 0}</small></button>`)}
        </div>
        <div class="choice">
          ${queues && html`<select aria-label="Queue" value=${filter.queue} onChange=${(event) => list.choose({ queue: event.target.value })}>
            <option value="">all queues</option>${header.queues.map((one) => html`<option value=${one}>${one}</option>`)}</select>`}
          <input type="search" placeholder="Filter by words" aria-label="Filter jobs by words" maxlength="200" value=${filter.text}
            onInput=${(event) => list.choose({ text: event.target.value })} />
        </div>
      </div>
      ${list.jobs.length > 0 && html`
        <div class="scroll" tabindex="0" role="region" aria-label="Table of jobs">
        <table class="cluster-jobs">
          <thead><tr><th scope="col">job</th><th scope="col">state</th><th scope="col" class="num">slots</th><th scope="col" class="num extra">priority</th>
            ${queues && html`<th scope="col" class="extra">queue</th>`}<th scope="col" class="num extra">age</th><th scope="col" class="wide">reason</th></tr></thead>
          <tbody>${list.jobs.map((job) => html`<${JobRow} key=${job.name} job=${job} now=${now} queues=${queues} chosen=${chosen} facts=${facts} token=${token} actions=${actions} colours=${colours} onChoose=${onChoose} />`)}</tbody>
        </table></div>`}
      ${!list.jobs.length && html`<p class="muted empty">${Object.keys(header.jobs).length ? "No job matches." : "There is no job; submit one with `edl submit job.yaml`."}</p>`}
      ${list.total > list.jobs.length && html`<p class="aside muted">${list.jobs.length} of ${whole(list.total)} jobs${list.more ? "" : "; filter to see others"}</p>`}
      ${list.more && html`<button type="button" class="more" onClick=${() => list.showMore()}>Show more</button>`}
    <//>`;
}

function Share({ queue, slots }) {
  const full = Math.max(slots, queue.slots, 1);
  const said = `${queue.guaranteed} of its quota of ${queue.quota}, ${queue.surplus} beyond it`;
  return html`<div class="bar" role="img" aria-label=${said} title=${said}>
    <i class="part-compute" style=${{ width: `${(100 * queue.guaranteed) / full}%` }}></i>
    <i class="part-data" style=${{ width: `${(100 * queue.surplus) / full}%` }}></i>
    <b class="median" style=${{ left: `${Math.min(99.5, (100 * queue.part) / full)}%` }}></b></div>`;
}

/** The queues and the tenants, with what each may have and has. */
export function Queues({ queues, tenants, slots }) {
  return html`
    <${Card} name="queues" title="Queues and tenants" note=${queues.length ? "Blue: slots within the quota; yellow: borrowed beyond it. The line is the queue's part while all queues want all slots." : 'The cluster has no queues: all jobs share its slots. "edl queue set" makes one.'}>
      ${queues.length > 0 && html`
        <div class="scroll" tabindex="0" role="region" aria-label="Table of queues"><table class="queues">
          <thead><tr><th scope="col">queue</th><th scope="col" class="wide">slots</th><th scope="col" class="num">has</th><th scope="col" class="num">quota</th>
            <th scope="col" class="num">part</th><th scope="col" class="num">max</th><th scope="col" class="num">runs</th><th scope="col" class="num">waits</th>
            <th scope="col" class="num"><abbr title="mean finish-time fairness: the time that jobs took, divided by what they would have taken alone on their part">rho</abbr></th></tr></thead>
          <tbody>${queues.map((one) => html`<tr key=${one.queue}>
            <th scope="row">${one.queue}${one.is_set ? "" : html` <span class="badge">not set</span>`}</th>
            <td class="wide"><${Share} queue=${one} slots=${slots ?? 0} /></td>
            <td class="num">${one.slots}</td><td class="num">${one.quota}</td><td class="num">${one.part}</td><td class="num">${one.most ?? "–"}</td>
            <td class="num">${one.running}</td><td class="num">${one.waiting}</td>
            <td class="num">${one.mean_rho === null ? "–" : one.mean_rho.toFixed(2)}</td></tr>`)}</tbody>
        </table></div>`}
      ${tenants.length > 0 && html`
        <div class="scroll" tabindex="0" role="region" aria-label="Table of tenants"><table class="tenants">
          <thead><tr><th scope="col">tenant</th><th scope="col">queues</th><th scope="col" class="num">slots</th><th scope="col" class="num">quota</th>
            <th scope="col" class="num">runs</th><th scope="col" class="num">waits</th></tr></thead>
          <tbody>${tenants.map((one) => html`<tr key=${one.tenant}>
            <th scope="row">${one.tenant || html`<span class="muted">administrator</span>`}</th><td>${one.queues.join(", ") || "–"}</td>
            <td class="num">${one.slots}</td><td class="num">${one.quota}</td><td class="num">${one.running}</td><td class="num">${one.waiting}</td></tr>`)}</tbody>
        </table></div>`}
    <//>`;
}

/** The hosts, those that need a look first, and the leases of an engine. */
export function Hosts({ hosts, actions, colours, onChoose }) {
  const shown = hosts?.rows ?? [];
  const few = hosts && hosts.total > shown.filter((one) => one.host).length ? `The first ${shown.length} of ${hosts.total}. ` : "";
  const lent = shown.some((one) => one.lease);
  return html`
    <${Card} name="hosts" title="Hosts" note="${few}Hosts that do not offer slots as they should come first." wide>
      ${shown.length > 0 ? html`
        <div class="scroll" tabindex="0" role="region" aria-label="Table of hosts"><table class="hosts">
          <thead><tr><th scope="col">host</th><th scope="col">state</th><th scope="col" class="num">slots in use</th><th scope="col" class="wide">jobs</th>
            <th scope="col">labels</th>${lent && html`<th scope="col">lease</th>`}${actions.allowed && html`<td></td>`}</tr></thead>
          <tbody>${shown.map((one) => html`<tr key=${one.host || one.lease}>
            <th scope="row">${one.host || html`<span class="muted">not there yet</span>`}</th>
            <td><span class="word tone-${one.tone}">${one.state}</span></td>
            <td class="num">${one.used}<span class="muted">/${one.slots}</span></td>
            <td class="wide"><ul class="chips">${Object.entries(one.jobs).map(([job, slots]) => html`<li><button type="button" onClick=${() => onChoose(job)}>
              <i class="swatch hue-${colours.of(job)}" aria-hidden="true"></i>${job} <small>${slots}</small></button></li>`)}
              ${one.more_jobs > 0 && html`<li class="muted">and ${one.more_jobs} more</li>`}</ul></td>
            <td>${[one.kind, ...Object.entries(one.labels).map(([key, value]) => `${key}=${value}`)].filter(Boolean).join(", ") || "–"}</td>
            ${lent && html`<td>${one.lease || "–"}</td>`}${actions.allowed && html`<td><${HostAction} actions=${actions} host=${one} /></td>`}</tr>`)}</tbody>
        </table></div>` : html`<p class="muted empty">There is no host; <code>edl host --slots N</code> offers one.</p>`}
    <//>`;
}

/** The events of the cluster; `events` is an EventList. */
export function ClusterEvents({ events, counts, unreadable, now }) {
  const drawn = (one) => ({
    tone: one.tone === "user" ? "change" : one.tone,
    title: one.about || one.kind,
    text: one.reason,
    place: `${one.kind}${one.by ? ` · ${one.by}` : ""}`,
  });
  return html`<${EventCard} events=${events} kinds=${KINDS} counts=${counts} unreadable=${unreadable} now=${now} drawn=${drawn}
    note="What users asked for, and what the leader did and why, the newest first." hint="Filter by words" />`;
}
