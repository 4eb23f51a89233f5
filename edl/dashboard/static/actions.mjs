// What a page can change, if its address had the token for that: each action asks once more.

import { Component, createRef } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { actionToken } from "./token.mjs";

/**
 * Carries out actions, after the question whether to.
 *
 * `post(path, values)` sends an action to the server, and answers with its sentence. `onChange` is
 * called after each change. `question` is what is asked now, or null; `said` is the last answer.
 */
export class Actions {
  constructor(post, onChange) {
    this.post = post;
    this.onChange = onChange;
    this.question = null;
    this.said = null;
    this.busy = false;
  }

  /** Whether this page may change something. */
  get allowed() {
    return actionToken() !== "";
  }

  /** Ask whether to do what `text` says: the action `path` with `values`. */
  ask(text, path, values = {}) {
    Object.assign(this, { question: { text, path, values }, said: null });
    this.onChange();
  }

  /** Do nothing of what was asked. */
  cancel() {
    this.question = null;
    this.onChange();
  }

  /** Do what was asked; the server's sentence, or why it refuses, is shown. */
  async confirm() {
    const { path, values } = this.question;
    Object.assign(this, { question: null, busy: true });
    this.onChange();
    try {
      this.said = { tone: "good", text: await this.post(path, values) };
    } catch (error) {
      this.said = { tone: "bad", text: error.message };
    }
    this.busy = false;
    this.onChange();
  }
}

/** The question whether to do it, above the page. */
class Question extends Component {
  dialog = createRef();

  componentDidMount() { this.dialog.current.showModal(); }

  render({ actions }) {
    return html`
      <dialog ref=${this.dialog} aria-labelledby="question" onCancel=${(event) => { event.preventDefault(); actions.cancel(); }}>
        <p id="question">${actions.question.text}</p>
        <div class="choice">
          <button type="button" class="primary" onClick=${() => actions.confirm()}>Yes, do it</button>
          <button type="button" onClick=${() => actions.cancel()}>Cancel</button>
        </div>
      </dialog>`;
  }
}

/** The question and the last answer of actions; nothing on a page that only reads. */
export function ActionStatus({ actions }) {
  if (!actions.allowed) return null;
  const { said, busy } = actions;
  return html`
    <div class="acted" role="status" aria-label="Last action">
      ${busy && html`<p class="notice tone-warning">The server is asked…</p>`}
      ${!busy && said && html`<p class="notice tone-${said.tone}">${said.text}</p>`}
    </div>
    ${actions.question && html`<${Question} actions=${actions} />`}`;
}

/** A form of one action: `onAsk(values)` gets its fields as texts by name. */
export function ActionForm({ label, onAsk, children }) {
  const submit = (event) => {
    event.preventDefault();
    onAsk(Object.fromEntries(new FormData(event.target)));
  };
  return html`<form class="fields" aria-label=${label} onSubmit=${submit}>${children}<button type="submit">${label}</button></form>`;
}

function HostField({ name, label, hosts }) {
  return html`<label class="field">${label}<input name=${name} list="hosts-${name}" autocomplete="off" required />
    <datalist id="hosts-${name}">${hosts.map((host) => html`<option value=${host}></option>`)}</datalist></label>`;
}

function NumberField({ name, label, ...rest }) {
  return html`<label class="field">${label}<input name=${name} type="number" ...${rest} /></label>`;
}

const number = (text) => Number.parseInt(text, 10);

/** What changes how many workers a job of `edl run` has, and where, and what ends it. */
function RunActions({ actions, header, workers }) {
  const { job } = header;
  const hosts = [...new Set(workers.rows.map((row) => row.host))].sort();
  const names = workers.rows.map((row) => row.worker);
  return html`
    <${ActionForm} label="Scale" onAsk=${({ np }) => actions.ask(`Let ${job} have ${np} workers?`, "api/actions/scale", { np: number(np) })}>
      <${NumberField} name="np" label="workers" min="1" required placeholder=${header.np} /><//>
    ${names.length > 0 && html`<${ActionForm} label="Drain worker" onAsk=${({ worker }) => actions.ask(`Let ${worker} leave ${job}, without a replacement?`, "api/actions/drain", { worker: number(worker.slice(1)) })}>
      <label class="field">worker<select name="worker">${names.map((one) => html`<option>${one}</option>`)}</select></label><//>`}
    <${ActionForm} label="Drain host" onAsk=${({ host }) => actions.ask(`Let host ${host} leave ${job}, with its workers and its agent?`, "api/actions/drain-host", { host })}>
      <${HostField} name="host" label="host" hosts=${hosts} /><//>
    <${ActionForm} label="Migrate" onAsk=${({ from, to, np }) => actions.ask(`Move ${np || "all"} workers of ${job} from ${from} to ${to}?`, "api/actions/migrate", { from, to, np: np ? number(np) : null })}>
      <${HostField} name="from" label="from host" hosts=${hosts} /><${HostField} name="to" label="to host" hosts=${hosts} />
      <${NumberField} name="np" label="workers" min="1" placeholder="all" /><//>
    <${ActionForm} label="Preempt" onAsk=${({ within }) => actions.ask(`Let ${job} save everything and end within ${within}? "edl run --resume" lets it go on, here or elsewhere.`, "api/actions/preempt", { within })}>
      <label class="field">within<input name="within" value="30s" autocomplete="off" required /></label><//>
    <button type="button" onClick=${() => actions.ask(`Stop ${job} after the step that runs?`, "api/actions/stop")}>Stop</button>`;
}

/** What a cluster lets a user change of a job: whether it runs, and its priority. */
function GoalActions({ actions, job, wanted = "", priority = "" }) {
  const ask = (text, verb, more = {}) => actions.ask(text, `/api/actions/${verb}`, { job, ...more });
  return html`
    <div class="fields">
      ${wanted !== "halt" && html`<button type="button" onClick=${() => ask(`Halt ${job}: save a checkpoint, and give its slots to others?`, "halt")}>Halt</button>`}
      ${wanted !== "run" && html`<button type="button" onClick=${() => ask(`Let ${job} go on when it gets slots?`, "resume")}>Resume</button>`}
      <button type="button" onClick=${() => ask(`Cancel ${job} for good? What it has trained is saved first, and its records stay until it is deleted again.`, "delete")}>Cancel job</button>
      <${ActionForm} label="Set priority" onAsk=${(given) => ask(`Give ${job} the priority ${given.priority}?`, "priority", { priority: number(given.priority) })}>
        <${NumberField} name="priority" label="priority" required placeholder=${priority} /><//>
    </div>`;
}

/** The actions on a job; in a cluster, which places its workers, others than elsewhere. */
export function JobActions({ actions, header, workers, inCluster }) {
  if (!actions.allowed || ["finished", "stopped", "failed"].includes(header.state)) return null;
  const { job } = header;
  return html`
    <section class="card wide" aria-labelledby="actions-title">
      <h2 id="actions-title">Actions</h2>
      <p class="note">Each asks once more, and then does what the command of the same name does.</p>
      <div class="actions">
        ${inCluster ? html`<${GoalActions} actions=${actions} job=${job} />`
          : html`<${RunActions} actions=${actions} header=${header} workers=${workers} />`}
        <details><summary>Policy</summary>
          <${ActionForm} label="Set policy" onAsk=${({ text }) => actions.ask(`Give ${job} this policy, in place of the one it has?`, "api/actions/policy", { text })}>
            <label class="field policy">policy, in TOML<textarea name="text" rows="6" required spellcheck="false"></textarea></label><//>
          <div class="choice">
            <button type="button" onClick=${() => actions.ask(`Switch the policy of ${job} off? It keeps its size.`, "api/actions/policy-off")}>Policy off</button>
            <button type="button" onClick=${() => actions.ask(`Let the policy of ${job} decide again?`, "api/actions/policy-resume")}>Resume policy</button>
          </div></details>
      </div>
    </section>`;
}

/** The actions on a job in the table of a cluster. */
export function ClusterJobActions({ actions, job }) {
  if (!actions.allowed || job.ended_s > 0 || job.wanted === "gone") return null;
  return html`<${GoalActions} actions=${actions} job=${job.name} wanted=${job.wanted} priority=${job.priority} />`;
}

/** The action on a host of a cluster. */
export function HostAction({ actions, host }) {
  if (!actions.allowed || !host.host) return null;
  return host.state === "drained"
    ? html`<button type="button" onClick=${() => actions.ask(`Let host ${host.host} have jobs again?`, "/api/actions/undrain", { host: host.host })}>Undrain</button>`
    : html`<button type="button" onClick=${() => actions.ask(`Drain host ${host.host}? Its jobs shrink or move, and it gets no others.`, "/api/actions/drain", { host: host.host })}>Drain</button>`;
}
