// The connection of a report: a file that has all of the job in itself, as `edl report` wrote it.

const EMBEDDED = document.getElementById("report");

/**
 * Answers from the page's own file as :class:`Connection` answers from the server.
 *
 * The file has `page` (a message of the server), all `events`, the newest first, and the `switches`
 * by generation.
 */
export class Report {
  constructor(onPage, onState) {
    this.data = JSON.parse(EMBEDDED.textContent);
    this.onPage = onPage;
    this.onState = onState;
  }

  follow() {
    this.onState("report");
    this.onPage(this.data.page);
  }

  async get(path) {
    const { pathname, searchParams } = new URL(path, document.baseURI);
    if (pathname.endsWith("api/events")) return { events: this.events(searchParams) };
    return { switch: this.data.switches[pathname.split("/").pop()] ?? null };
  }

  /** Return the events that a query chooses, as `EventChoice` does at the server. */
  events(query) {
    const tones = query.get("tones").split(",").filter(Boolean);
    const words = query.get("text").toLowerCase().split(/\s+/).filter(Boolean);
    const before = Number(query.get("before") ?? Infinity);
    return this.data.events
      .filter((event) => event.number < before)
      .filter((event) => !tones.length || tones.includes(event.tone))
      .filter((event) => words.every((word) => `${event.kind} ${event.reason}`.toLowerCase().includes(word)))
      .slice(0, Number(query.get("limit")));
  }
}

/** Whether this page is a report. */
export const isReport = EMBEDDED !== null;
