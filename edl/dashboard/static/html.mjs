// The tag for templates: htm, bound to Preact.

import { h } from "./vendor/preact.mjs";
import htm from "./vendor/htm.module.js";

export const html = htm.bind(h);
