// The tag for templates: htm, bound to Preact.

import { h } from "./vendor/preact.mjs";
import htm from "./vendor/htm.module.js";

/**
 * htm keeps an element without changing parts, to use it again each time. Such an element would keep
 * the whole page of the time when it was drawn first. So each is said to change (`this[0] = 3`).
 */
function create(...given) {
  this[0] = 3;
  return h(...given);
}

export const html = htm.bind(create);
