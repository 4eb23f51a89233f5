// The page of a job, from its server, or from the file of a report.

import { html } from "./html.mjs";
import { ActionStatus, Actions, JobActions } from "./actions.mjs";
import { EventList } from "./events.mjs";
import { clock } from "./format.mjs";
import { Learning } from "./learning.mjs";
import { LivePage, Notices } from "./live_page.mjs";
import { Report, isReport } from "./report.mjs";
import { clusterAddress } from "./token.mjs";
import { Card, Events, Generations, Header, Incidents, Ledger, Scaling, Speed, Workers } from "./view.mjs";

const inCluster = !isReport && location.pathname.startsWith("/jobs/");
const state = { chosen: null, cost: null };
const page = new LivePage("job", () => html`<${Page} />`, onNew, onSections);
const draw = () => page.draw();
const events = new EventList(async (query) => (await page.get(`api/events?${query}`)).events, draw);
const actions = new Actions((path, values) => page.post(path, values), draw);

function onNew() {
  Object.assign(state, { chosen: null, cost: null });
  events.clear();
}

function onSections(before) {
  if (page.sections.events?.last === before.events?.last) return;
  events.refresh();
  if (state.chosen !== null && !state.cost) askCost();
}

async function askCost() {
  const generation = state.chosen;
  try {
    const answer = await page.get(`api/generations/${generation}`);
    if (generation === state.chosen) state.cost = answer.switch;
  } catch {
    return;
  }
  draw();
}

function onSelect(band) {
  state.chosen = band === null || band.last === state.chosen ? null : band.last;
  state.cost = null;
  draw();
  if (state.chosen !== null) askCost();
}

function Page() {
  const { header, incidents, learning, timeline, workers, speed, ledger, scaling, events: kept, read_s: now, now_s: present } = page.sections;
  if (!header) {
    return html`<main class="ask"><${Notices} page=${page} /><p class="loading">Waiting for the job…</p>
      ${inCluster && html`<a href=${clusterAddress(page.token)}>← The cluster</a>`}</main>`;
  }
  document.title = `${header.job}: ${header.words}`;
  return html`
    ${inCluster && html`<nav><a href=${clusterAddress(page.token)}>← The cluster</a></nav>`}
    <${Notices} page=${page} />
    <${Header} header=${header} now=${now} stale=${page.isStale} />
    ${!isReport && html`<${ActionStatus} actions=${actions} />`}
    <main>
      <${Incidents} incidents=${incidents} now=${present} />
      <${Generations} timeline=${timeline} now=${present} chosen=${state.chosen} cost=${state.cost} onSelect=${onSelect} />
      <${Workers} workers=${workers} />
      ${!isReport && html`<${JobActions} actions=${actions} header=${header} workers=${workers} inCluster=${inCluster} />`}
      <${Speed} speed=${speed} />
      <${Learning} learning=${learning} card=${Card} />
      <${Scaling} scaling=${scaling} />
      <${Ledger} ledger=${ledger} now=${present} />
      <${Events} events=${events} counts=${kept?.counts ?? {}} unreadable=${kept?.unreadable} now=${now} />
    </main>
    <footer><span>${page.linkWords}</span><span>read at ${clock(now)} from ZooKeeper ${header.zookeeper}</span>
      <code>${header.command.join(" ")}</code></footer>`;
}

if (isReport) page.follow(new Report((message) => page.take(message), (link) => page.onLink(link)));
else page.start();
