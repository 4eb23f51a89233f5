// The jobs that the page of a cluster lists: those that the filter chooses, as many as were asked for.

const FIRST = 50;
const MOST = 500; // the server answers with no more

/**
 * Keeps the listed jobs.
 *
 * `ask(query)` answers with `jobs`, the first that a query chooses, and `total`, how many there are.
 * `onChange` is called after each change.
 */
export class JobList {
  constructor(ask, onChange) {
    this.ask = ask;
    this.onChange = onChange;
    this.filter = { states: [], queue: "", text: "" };
    this.limit = FIRST;
    this.jobs = [];
    this.total = 0;
    this.asked = 0;
  }

  /** Show the jobs that match another filter; those before stay until the answer comes. */
  choose(change) {
    this.filter = { ...this.filter, ...change };
    this.limit = FIRST;
    this.onChange();
    return this.refresh();
  }

  /** Show more of the jobs that match. */
  showMore() {
    this.limit = Math.min(MOST, 2 * this.limit);
    return this.refresh();
  }

  /** Whether more jobs match than are listed, and may be. */
  get more() {
    return this.total > this.jobs.length && this.limit < MOST;
  }

  /** Ask again for the jobs that match. */
  async refresh() {
    this.asked += 1;
    const { asked, filter, limit } = this;
    const { states, queue, text } = filter;
    try {
      const found = await this.ask(new URLSearchParams({ states: states.join(","), queue, text, limit }));
      if (asked !== this.asked) return;
      Object.assign(this, found);
    } catch {
      return; // the next change asks again, and the link says what is wrong
    }
    this.onChange();
  }
}
