// The part that all pages share: the token, the link to the server, the sections, the drawing.

import { render } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { Connection } from "./connection.mjs";
import { clock } from "./format.mjs";
import { forgetToken, givenToken, keepToken, typedToken } from "./token.mjs";
import { Token } from "./view.mjs";

const LINKS = {
  stream: "live", poll: "updated every 2 s", offline: "not connected", report: "a report: it stays as it is",
};

/**
 * Follows the server (or a report) and draws what it says; asks for the token where there is none.
 *
 * `what` is "job" or "cluster". `draw()` returns the content of the page. `onNew()` is called when
 * another server, or another start of the job, answers: what was known is not true of it.
 * `onSections(before)` is called after each message, with the sections before it.
 */
export class LivePage {
  constructor(what, draw, onNew, onSections) {
    Object.assign(this, { what, content: draw, onNew, onSections });
    Object.assign(this, { token: "", wrong: false, link: "", said: "", offlineSince: null });
    Object.assign(this, { instance: "", sections: {}, connection: null, isDue: false });
    this.root = document.getElementById("page");
    this.root.replaceChildren();
  }

  /** Ask for JSON at `path`. */
  get(path) { return this.connection.get(path); }

  /** Ask the server to change something, and return the sentence that says what was done. */
  post(path, values) { return this.connection.post(path, values); }

  /** Follow the server with the token of the address or of this tab, and with those that come. */
  start() {
    addEventListener("hashchange", () => {
      const before = this.token;
      const token = givenToken();
      if (token !== before) this.startWith(token);
    });
    this.startWith(givenToken());
  }

  startWith(token) {
    Object.assign(this, { token, wrong: false });
    if (token) {
      keepToken(token);
      this.follow(new Connection(token, (message) => this.take(message), (link) => this.onLink(link)));
    }
    this.draw();
  }

  /** Follow `connection` in place of the one before. */
  follow(connection) {
    this.connection?.close();
    this.connection = connection;
    connection.follow();
  }

  /** Take the sections of a message. */
  take(message) {
    if (message.instance !== this.instance) {
      Object.assign(this, { instance: message.instance, sections: {} });
      this.onNew();
    }
    const before = this.sections;
    this.sections = { ...before, ...message.sections };
    this.onSections(before);
    this.draw();
  }

  onLink(link) {
    const said = this.connection.said ?? "";
    if (link === this.link && said === this.said) return;
    Object.assign(this, { link, said });
    this.offlineSince = link === "offline" ? this.offlineSince ?? Date.now() / 1000 : null;
    if (link === "unauthorised") {
      forgetToken();
      Object.assign(this, { token: "", wrong: true });
    }
    this.draw();
  }

  /** Draw what is known; several changes at once are drawn once. */
  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      const isLocked = !this.token && this.link !== "report";
      render(isLocked
        ? html`<${Token} wrong=${this.wrong} what=${this.what} onToken=${(text) => this.startWith(typedToken(text))} />`
        : this.content(), this.root);
    });
  }

  /** Whether what is shown may be old. */
  get isStale() { return this.link === "offline" || Boolean(this.sections.notice?.stale); }

  /** How the page is connected, in words. */
  get linkWords() { return LINKS[this.link]; }
}

/** What is wrong with the server of `page`, or with what it reads; `children` are more notices. */
export function Notices({ page, children }) {
  const { link, said, offlineSince, sections: { notice } } = page;
  return html`<div role="alert">
    ${link === "offline" && html`<p class="notice tone-bad">${said || html`The server of this page has not answered since ${clock(offlineSince)}. It shows what was known then. <code>edl dashboard</code> starts it again.`}</p>`}
    ${notice && html`<p class="notice tone-${notice.tone}">${notice.text}</p>`}
    ${children}
  </div>`;
}
