// The words of the page that not everybody knows: their meaning in place, and all of them in a list.

import { html } from "./html.mjs";

const MEANINGS = {
  ring: "The workers that train together: in each step they reduce their gradients to one mean.",
  generation: "The number of the present ring. It grows with each change of the ring: workers have joined, left or were lost.",
  leader: "The worker that decides which workers are in the ring. If it is lost, another one takes over; training does not wait for that.",
  term: "A number that grows with each new leader.",
  switch: "The change from one ring to the next. Training stands still for as long as it takes, most often less than a second.",
  step: "One update of the model, by all workers together.",
  "samples/s": "The samples that all workers together have trained in a second: the mean over the last 3 seconds.",
  "step time": "From the end of a step to the end of the next one, reducing and waiting for others included: the median of the last 50 steps of one worker. It is newer than what the table of workers has.",
  goodput: "The part of the time since the first ring in which nothing held the training up: no switch, no pause with too few workers, and no stand-still that lasts now. 100 % is the best.",
  "own time": "The time in which a worker computes and loads its data in a step, without reducing and waiting for others. Of the slowest worker it is nearly the step time; the others wait.",
  ledger: "The workers' own record of which samples are trained in this epoch.",
};

/** A word with its meaning, for people who point at it. */
export function Word({ name, text }) {
  return html`<abbr title=${MEANINGS[name]}>${text ?? name}</abbr>`;
}

/** The list of all words, for those who have no pointer, too. */
export function WordList() {
  return html`
    <details class="words"><summary>What these words mean</summary>
      <dl>${Object.entries(MEANINGS).map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    </details>`;
}
