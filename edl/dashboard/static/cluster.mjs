// Starts the page of a cluster: reads the token, follows the server, draws.

import { render } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { ClusterEvents, ClusterHeader, ClusterJobs, ClusterNotices, Hosts, Queues, WhatIf } from "./cluster_view.mjs";
import { ActionStatus, Actions } from "./actions.mjs";
import { SlotChart } from "./cluster_chart.mjs";
import { JobList } from "./cluster_jobs.mjs";
import { Connection } from "./connection.mjs";
import { EventList } from "./events.mjs";
import { clock } from "./format.mjs";
import { forgetToken, givenToken, keepToken, typedToken } from "./token.mjs";
import { Token } from "./view.mjs";

const CHART_MS = 15000; // after which the chart is asked for again though nothing was logged
const root = document.getElementById("page");
root.replaceChildren();

const state = {
  token: "", wrong: false, link: "", offlineSince: null, instance: "", sections: {},
  chosen: null, facts: null, drawn: false,
  chart: null, chartProblem: "", chartFilter: { period: 3600, job: "", host: "" },
  forecast: null,
};
let connection = null;
const ask = (path) => connection.get(path);
const events = new EventList(async (query) => (await ask(`api/events?${query}`)).events, draw);
const jobs = new JobList((query) => ask(`api/jobs?${query}`), draw);
const actions = new Actions((path, values) => connection.post(path, values), draw);

function start(token) {
  Object.assign(state, { token, wrong: false });
  if (!token) return draw();
  keepToken(token);
  connection?.close();
  connection = new Connection(token, onPage, onLink);
  connection.follow();
  return draw();
}

function onPage(message) {
  if (message.instance !== state.instance) {
    Object.assign(state, { instance: message.instance, sections: {}, chart: null });
    events.clear();
  }
  const before = state.sections;
  state.sections = { ...state.sections, ...message.sections };
  const { events: logged, jobs: listed, history, header } = state.sections;
  if (header && !header.viewer) {
    if (logged?.last !== before.events?.last) events.refresh();
    if (history?.version !== before.history?.version) askChart();
  }
  if (listed?.version !== before.jobs?.version) {
    jobs.refresh();
    askFacts();
  }
  draw();
}

function onLink(link) {
  if (link === state.link) return;
  state.link = link;
  state.offlineSince = link === "offline" ? Date.now() / 1000 : null;
  if (link === "unauthorised") {
    forgetToken();
    Object.assign(state, { token: "", wrong: true });
  }
  draw();
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

async function onForecast(values) {
  state.forecast = { asks: true };
  draw();
  try {
    state.forecast = await ask(`api/what-if?${new URLSearchParams(values)}`);
  } catch (error) {
    state.forecast = { message: error.message };
  }
  draw();
}

/** Draw what is known; several changes at once are drawn once. */
function draw() {
  if (state.drawn) return;
  state.drawn = true;
  requestAnimationFrame(() => {
    state.drawn = false;
    render(html`<${Page} />`, root);
  });
}

function Page() {
  if (!state.token) return html`<${Token} wrong=${state.wrong} what="cluster" onToken=${(text) => start(typedToken(text))} />`;
  const { header, hosts, queues, tenants, events: logged, history, notice, read_s: now } = state.sections;
  const notices = html`<${ClusterNotices} notice=${notice} header=${header} now=${now} offlineSince=${state.link === "offline" ? state.offlineSince : null} />`;
  if (!header) return html`<main>${notices}<p class="loading">Waiting for the cluster…</p></main>`;
  document.title = `${header.cluster}: ${header.words}`;
  const link = { stream: "live", poll: "updated every 2 s", offline: "not connected" }[state.link];
  const whole = !header.viewer;
  return html`
    ${notices}
    <${ClusterHeader} header=${header} now=${now} stale=${state.link === "offline" || Boolean(notice?.stale)} />
    <${ActionStatus} actions=${actions} />
    <main>
      ${whole && html`<${SlotChart} chart=${state.chart} problem=${state.chartProblem || history?.problem} filter=${state.chartFilter}
        hosts=${hosts?.rows ?? []} chosen=${state.chosen} onChart=${onChart} onChoose=${onChoose} />`}
      <${ClusterJobs} jobs=${jobs} header=${header} now=${now} chosen=${state.chosen} facts=${state.facts} token=${state.token} actions=${actions} onChoose=${onChoose} />
      ${whole && html`<${WhatIf} queues=${queues ?? []} forecast=${state.forecast} onForecast=${onForecast} />`}
      ${whole && html`<${Queues} queues=${queues ?? []} tenants=${tenants ?? []} slots=${header.slots} />`}
      ${whole && html`<${Hosts} hosts=${hosts} actions=${actions} onChoose=${onChoose} />`}
      ${whole && html`<${ClusterEvents} events=${events} counts=${logged?.counts ?? {}} unreadable=${logged?.unreadable} now=${now} />`}
    </main>
    <footer><span>${link}</span><span>read at ${clock(now)} from ZooKeeper ${header.zookeeper}</span></footer>`;
}

setInterval(() => {
  const { header } = state.sections;
  if (header && !header.viewer && !document.hidden) askChart();
}, CHART_MS);
addEventListener("hashchange", () => {
  const before = state.token;
  const token = givenToken();
  if (token !== before) start(token);
});
start(givenToken());
