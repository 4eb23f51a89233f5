// The connection to the server: a stream of changes, or polling where no stream comes through.

import { actionToken } from "./token.mjs";

const POLL_MS = 2000;
const FIRST_MS = 4000; // for the first message of a stream: else something holds it back
const SILENT_MS = 25000; // the server says each 10 s that it lives
const POLLS = 10; // before a stream is tried again

/** The error of a request that the server refuses because of the token. */
export class Unauthorised extends Error {}

/**
 * Follows the page of the server.
 *
 * `onPage(message)` gets each message, `onState(state)` is told "stream", "poll", "offline" or
 * "unauthorised" when that changes.
 */
export class Connection {
  constructor(token, onPage, onState) {
    this.token = token;
    this.onPage = onPage;
    this.onState = onState;
    this.instance = "";
    this.version = 0;
    this.ended = false;
    this.said = ""; // the sentence with which the server has refused the last request
  }

  /** Ask the server for JSON at `path`. */
  async get(path, signal) {
    const answer = await this.request(path, signal);
    return answer.json();
  }

  /** Ask the server to change something, and return the sentence that says what was done. */
  async post(path, values) {
    const headers = { "Content-Type": "application/json", "Edl-Actions": actionToken() };
    const answer = await this.request(path, undefined, { method: "POST", headers, body: JSON.stringify(values) });
    return (await answer.json()).message;
  }

  async request(path, signal, { headers: more = {}, ...options } = {}) {
    const headers = { Authorization: `Bearer ${this.token}`, ...more };
    this.said = "";
    const answer = await fetch(path, { headers, signal, cache: "no-store", ...options });
    if (answer.status === 401) throw new Unauthorised("the token is missing or wrong");
    if (!answer.ok) {
      this.said = (await answer.json().catch(() => null))?.message ?? "";
      throw new Error(this.said || `the server answers ${answer.status}`);
    }
    return answer;
  }

  /** Follow the page until `close()`, or until the token is refused. */
  async follow() {
    while (!this.ended) {
      try {
        await this.stream();
      } catch (error) {
        if (error instanceof Unauthorised) return this.refused();
      }
      for (let count = 0; count < POLLS && !this.ended; count += 1) {
        try {
          await this.poll();
          this.onState("poll");
        } catch (error) {
          if (error instanceof Unauthorised) return this.refused();
          this.onState("offline");
          count = POLLS - 1; // a stream is the next to try
        }
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
    }
    return undefined;
  }

  refused() {
    this.ended = true;
    this.onState("unauthorised");
  }

  close() {
    this.ended = true;
    this.abort?.abort();
  }

  take(message) {
    this.instance = message.instance;
    this.version = message.version;
    this.onPage(message);
  }

  async poll() {
    const abort = AbortSignal.timeout(SILENT_MS);
    this.take(await this.get(`api/page?instance=${this.instance}&since=${this.version}`, abort));
  }

  /** Read one stream of server-sent events until it ends, or stays silent. */
  async stream() {
    this.abort = new AbortController();
    const abort = () => this.abort.abort();
    let silence = setTimeout(abort, FIRST_MS);
    try {
      const answer = await this.request("api/stream", this.abort.signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(abort, SILENT_MS);
        text += value;
        const messages = text.split("\n\n");
        text = messages.pop();
        for (const message of messages) {
          if (message.startsWith("data: ")) {
            this.take(JSON.parse(message.slice(6)));
            this.onState("stream");
          }
        }
      }
    } finally {
      clearTimeout(silence);
      this.abort.abort();
    }
  }
}
