// Starts the page: reads the token, follows the server, draws. A report has neither.

import { render } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { ActionStatus, Actions, JobActions } from "./actions.mjs";
import { Connection } from "./connection.mjs";
import { EventList } from "./events.mjs";
import { clock } from "./format.mjs";
import { Report, isReport } from "./report.mjs";
import { clusterAddress, forgetToken, givenToken, keepToken, typedToken } from "./token.mjs";
import { Concerns, Events, Generations, Header, Ledger, Scaling, Speed, Token, Workers } from "./view.mjs";

const inCluster = !isReport && location.pathname.startsWith("/jobs/");
const root = document.getElementById("page");
root.replaceChildren();

const state = {
  token: "", wrong: false, link: "", said: "", offlineSince: null, instance: "", sections: {},
  chosen: null, cost: null, drawn: false,
};
let connection = null;
const events = new EventList(async (query) => (await connection.get(`api/events?${query}`)).events, draw);
const actions = new Actions((path, values) => connection.post(path, values), draw);

function startReport() {
  connection = new Report(onPage, onLink);
  connection.follow();
}

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
    Object.assign(state, { instance: message.instance, sections: {}, chosen: null, cost: null });
    events.clear();
  }
  const before = state.sections.events?.last;
  state.sections = { ...state.sections, ...message.sections };
  if (state.sections.events?.last !== before) {
    events.refresh();
    if (state.chosen !== null && !state.cost) askCost();
  }
  draw();
}

function onLink(link) {
  const said = connection.said ?? "";
  if (link === state.link && said === state.said) return;
  state.said = said;
  state.link = link;
  state.offlineSince = link === "offline" ? state.offlineSince ?? Date.now() / 1000 : null;
  if (link === "unauthorised") {
    forgetToken();
    Object.assign(state, { token: "", wrong: true });
  }
  draw();
}

async function askCost() {
  const generation = state.chosen;
  try {
    const answer = await connection.get(`api/generations/${generation}`);
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

function onFilter(filter) {
  events.choose(filter);
  draw();
}

function onToken(text) {
  start(typedToken(text));
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

function Notices({ notice }) {
  return html`<div role="alert">
    ${state.link === "offline" && state.said && html`<p class="notice tone-bad">${state.said}</p>`}
    ${state.link === "offline" && !state.said && html`<p class="notice tone-bad">The server of this page has not answered since ${clock(state.offlineSince)}. It shows what was known then. <code>edl dashboard</code> starts it again.</p>`}
    ${notice && html`<p class="notice tone-${notice.tone}">${notice.text}</p>`}
  </div>`;
}

function Page() {
  if (!state.token && !isReport) return html`<${Token} wrong=${state.wrong} onToken=${onToken} />`;
  const { header, timeline, workers, speed, ledger, scaling, events: kept, notice, read_s: now } = state.sections;
  if (!header) {
    return html`<main class="ask"><${Notices} notice=${notice} /><p class="loading">Waiting for the job…</p>
      ${inCluster && html`<a href=${clusterAddress(state.token)}>← The cluster</a>`}</main>`;
  }
  document.title = `${header.job}: ${header.words}`;
  const link = {
    stream: "live", poll: "updated every 2 s", offline: "not connected", report: "a report: it stays as it is",
  }[state.link];
  return html`
    ${inCluster && html`<nav><a href=${clusterAddress(state.token)}>← The cluster</a></nav>`}
    <${Notices} notice=${notice} />
    <${Header} header=${header} now=${now} stale=${state.link === "offline" || Boolean(notice?.stale)} />
    ${!isReport && html`<${ActionStatus} actions=${actions} />`}
    <main>
      <${Concerns} concerns=${kept?.concerns ?? []} now=${now} />
      <${Generations} timeline=${timeline} now=${now} chosen=${state.chosen} cost=${state.cost} onSelect=${onSelect} />
      <${Workers} workers=${workers} />
      ${!isReport && html`<${JobActions} actions=${actions} header=${header} workers=${workers} inCluster=${inCluster} />`}
      <${Speed} speed=${speed} />
      <${Scaling} scaling=${scaling} />
      <${Ledger} ledger=${ledger} now=${now} />
      <${Events} events=${events} counts=${kept?.counts ?? {}} unreadable=${kept?.unreadable} now=${now} onFilter=${onFilter} />
    </main>
    <footer><span>${link}</span><span>read at ${clock(now)} from ZooKeeper ${header.zookeeper}</span>
      <code>${header.command.join(" ")}</code></footer>`;
}

if (isReport) {
  startReport();
} else {
  addEventListener("hashchange", () => {
    const before = state.token;
    const token = givenToken();
    if (token !== before) start(token);
  });
  start(givenToken());
}
