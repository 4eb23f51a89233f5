// The page of a cluster.

import { html } from "./html.mjs";
import { ClusterEvents, ClusterHeader, ClusterJobs, Hosts, Leaderless, Queues } from "./cluster_view.mjs";
import { ActionStatus, Actions } from "./actions.mjs";
import { SlotChart } from "./cluster_chart.mjs";
import { JobColours } from "./cluster_colours.mjs";
import { JobList } from "./cluster_jobs.mjs";
import { EventList } from "./events.mjs";
import { clock } from "./format.mjs";
import { LivePage, Notices } from "./live_page.mjs";

const CHART_MS = 15000; // after which the chart is asked for again though nothing was logged
const state = {
  chosen: null, facts: null,
  chart: null, chartProblem: "", chartFilter: { period: 3600, job: "", host: "" },
};
const page = new LivePage("cluster", () => html`<${Page} />`, onNew, onSections);
const draw = () => page.draw();
const ask = (path) => page.get(path);
const events = new EventList(async (query) => (await ask(`api/events?${query}`)).events, draw);
const jobs = new JobList((query) => ask(`api/jobs?${query}`), draw);
const actions = new Actions((path, values) => page.post(path, values), draw);
const colours = new JobColours();

function onNew() {
  state.chart = null;
  events.clear();
}

function onSections(before) {
  const { events: logged, jobs: listed, history, header } = page.sections;
  if (header && !header.viewer) {
    if (logged?.last !== before.events?.last) events.refresh();
    if (history?.version !== before.history?.version) askChart();
  }
  if (listed?.version !== before.jobs?.version) {
    jobs.refresh();
    askFacts();
  }
}

async function askChart() {
  const filter = state.chartFilter;
  try {
    const chart = await ask(`api/chart?${new URLSearchParams(filter)}`);
    if (filter === state.chartFilter) Object.assign(state, { chart, chartProblem: "" });
  } catch (error) {
    state.chartProblem = error.message; // the chart stays, and the next change asks again
  }
  draw();
}

async function askFacts() {
  const job = state.chosen;
  if (job === null) return;
  try {
    const facts = await ask(`api/jobs/${encodeURIComponent(job)}`);
    if (job === state.chosen) state.facts = facts;
  } catch {
    return;
  }
  draw();
}

function onChoose(job) {
  Object.assign(state, { chosen: job === state.chosen ? null : job, facts: null });
  askFacts();
  draw();
}

function onChart(change) {
  state.chartFilter = { ...state.chartFilter, ...change };
  askChart();
  draw();
}

/** Return the names of the jobs that are shown: those of the chart, then of the hosts and the table. */
function shownJobs() {
  const rows = state.chart?.rows ?? [];
  return [
    ...rows.flatMap((row) => row.boxes.map((box) => box.job)),
    ...(page.sections.hosts?.rows ?? []).flatMap((one) => Object.keys(one.jobs)),
    ...jobs.jobs.map((job) => job.name),
  ];
}

function Page() {
  const { header, hosts, queues, tenants, events: logged, history, read_s: now } = page.sections;
  const notices = html`<${Notices} page=${page}><${Leaderless} header=${header} now=${now} /><//>`;
  if (!header) return html`<main>${notices}<p class="loading">Waiting for the cluster…</p></main>`;
  document.title = `${header.cluster}: ${header.words}`;
  const whole = !header.viewer;
  colours.show(shownJobs());
  return html`
    ${notices}
    <${ClusterHeader} header=${header} now=${now} stale=${page.isStale} />
    <${ActionStatus} actions=${actions} />
    <main>
      ${whole && html`<${SlotChart} chart=${state.chart} problem=${state.chartProblem || history?.problem} filter=${state.chartFilter}
        hosts=${hosts?.rows ?? []} chosen=${state.chosen} colours=${colours} onChart=${onChart} onChoose=${onChoose} />`}
      <${ClusterJobs} jobs=${jobs} header=${header} now=${now} chosen=${state.chosen} facts=${state.facts} token=${page.token} actions=${actions} colours=${colours} onChoose=${onChoose} />
      ${whole && html`<${Queues} queues=${queues ?? []} tenants=${tenants ?? []} slots=${header.slots} />`}
      ${whole && html`<${Hosts} hosts=${hosts} actions=${actions} colours=${colours} onChoose=${onChoose} />`}
      ${whole && html`<${ClusterEvents} events=${events} counts=${logged?.counts ?? {}} unreadable=${logged?.unreadable} now=${now} />`}
    </main>
    <footer><span>${page.linkWords}</span><span>read at ${clock(now)} from ZooKeeper ${header.zookeeper}</span></footer>`;
}

setInterval(() => {
  const { header } = page.sections;
  if (header && !header.viewer && !document.hidden) askChart();
}, CHART_MS);
page.start();
