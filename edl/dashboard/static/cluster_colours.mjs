// The colours of jobs: as far as there are enough, jobs that are shown together have different ones.

const HUES = 8; // with white text on each: hue-0 to hue-7 in style.css

/** Return the colour that a job likes best, a number from 0 to 7: the same each time. */
function liked(job) {
  let sum = 0;
  for (const letter of job) sum = (131 * sum + 7 * letter.codePointAt(0)) % 65521;
  return (sum >> 4) % HUES;
}

/** Keeps the colour of each job that is shown, a number from 0 to 7. */
export class JobColours {
  constructor() {
    this.hues = new Map();
  }

  /**
   * Give each of `jobs`, all that are shown now, a colour; earlier ones in the list come first.
   *
   * A job keeps its colour, unless another one has it while a colour is free. Of more than 8 jobs,
   * as few as possible share a colour.
   */
  show(jobs) {
    const shown = [...new Set(jobs)];
    const users = new Array(HUES).fill(0);
    const hues = new Map();
    const give = (job, hue) => {
      hues.set(job, hue);
      users[hue] += 1;
    };
    for (const job of shown) {
      const hue = this.hues.get(job);
      if (hue !== undefined && !users[hue]) give(job, hue);
    }
    for (const job of shown) {
      if (hues.has(job)) continue;
      const least = Math.min(...users);
      const first = this.hues.get(job) ?? liked(job);
      const order = users.map((_, step) => (first + step) % HUES);
      give(job, order.find((hue) => users[hue] === least));
    }
    this.hues = hues;
  }

  /** Return the colour of a job that is shown. */
  of(job) {
    return this.hues.get(job) ?? liked(job);
  }
}
