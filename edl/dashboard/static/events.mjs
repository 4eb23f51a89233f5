// The events that the page lists: the newest that match the filter, and older ones page by page.

const FIRST = 100; // events of the newest page
const MORE = 200; // of each older one

/** Return `events` with several checkpoints in a row as one list, which else bury the others. */
export function folded(events) {
  const rows = [];
  for (const one of events) {
    if (one.kind !== "checkpoint") rows.push(one);
    else if (Array.isArray(rows.at(-1))) rows.at(-1).push(one);
    else rows.push([one]);
  }
  return rows.map((row) => (Array.isArray(row) && row.length === 1 ? row[0] : row));
}

/**
 * Keeps the listed events, the newest first.
 *
 * `ask(query)` answers with the events that a query chooses: its `tones` and `text` are the filter,
 * `limit` is the largest number of events, and with `before` all have a smaller number. `onChange`
 * is called after each change.
 */
export class EventList {
  constructor(ask, onChange) {
    this.ask = ask;
    this.onChange = onChange;
    this.filter = { tones: [], text: "" };
    this.isAsking = false; // for the newest events
    this.clear();
  }

  /** Forget the events, because they are those of another start of the job. */
  clear() {
    this.events = [];
    this.more = false; // whether older ones may match
    this.most = FIRST; // as many as somebody wanted to see
    this.isOld = true; // they are not those of the filter
    this.isDue = false; // to be asked for
  }

  /** Show the events that match another filter; those before stay until the answer comes. */
  choose(filter) {
    this.filter = filter;
    this.isOld = true;
    this.onChange();
    return this.refresh();
  }

  /**
   * Ask for the newest events; older pages stay if these follow them without a gap.
   *
   * One question is open at a time: where events come faster than answers, each answer is shown, and
   * the next question asks for what came meanwhile.
   */
  async refresh() {
    this.isDue = true;
    if (this.isAsking) return;
    this.isAsking = true;
    while (this.isDue) {
      this.isDue = false;
      const { filter, events } = this;
      const found = await this.answer({ limit: FIRST });
      if (found !== null && filter === this.filter && !(this.isOld && events !== this.events)) this.take(found);
    }
    this.isAsking = false;
  }

  /** List the newest events, which the server has answered. */
  take(found) {
    const isFull = found.length >= FIRST;
    const last = found.at(-1)?.number;
    const follows = !this.isOld && isFull && this.events.length > 0 && this.events[0].number >= last;
    const older = follows ? this.events.filter((one) => one.number < last) : [];
    if (!follows) Object.assign(this, { more: isFull, most: FIRST });
    const all = [...found, ...older];
    this.more ||= all.length > this.most;
    this.events = all.slice(0, this.most);
    this.isOld = false;
    this.onChange();
  }

  /** Ask for the page before the oldest event that is listed. */
  async showMore() {
    const before = this.events.at(-1)?.number;
    if (before === undefined || this.isOld) return;
    const { filter } = this;
    const found = await this.answer({ limit: MORE, before });
    if (found === null || this.isOld || filter !== this.filter || this.events.at(-1)?.number !== before) return;
    this.events = [...this.events, ...found.filter((one) => one.number < before)];
    this.most = this.events.length;
    this.more = found.length >= MORE;
    this.onChange();
  }

  /** Return the events that a query and the filter choose; null: there is no answer. */
  async answer(query) {
    const { tones, text } = this.filter;
    try {
      return await this.ask(new URLSearchParams({ tones: tones.join(","), text, ...query }));
    } catch {
      return null; // the next change asks again, and the link says what is wrong
    }
  }
}
