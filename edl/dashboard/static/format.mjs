// Numbers, times and durations as text for people.

const DASH = "–";

/** Return `value` with about three significant digits, and groups of thousands. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (value === 0) return "0";
  const whole = Math.max(1, Math.ceil(Math.log10(Math.abs(value) + 1e-12)));
  const decimals = Math.max(0, Math.min(3, digits - whole));
  return value.toLocaleString("en-GB", { maximumFractionDigits: decimals });
}

/** Return `value` with three significant digits, also if it is tiny or huge: "0.00012", "1.2e9". */
export function significant(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const rounded = Number(value.toPrecision(3));
  const far = Math.abs(rounded) >= 1e6 || (rounded !== 0 && Math.abs(rounded) < 1e-5);
  return far ? rounded.toExponential().replace("e+", "e") : String(rounded);
}

/** Return a whole number with groups of thousands. */
export function whole(value) {
  return value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en-GB");
}

/** Return a ratio as a percentage. */
export function percent(value, decimals = 1) {
  return value === null || value === undefined ? DASH : `${(100 * value).toFixed(decimals)} %`;
}

/** Return a short time: "240 µs", "12 ms", "1.43 s". */
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${Math.round(1e6 * seconds)} µs`;
  if (seconds < 0.995) return `${number(1000 * seconds, 3)} ms`;
  return seconds < 60 ? `${number(seconds, 3)} s` : duration(seconds);
}

/** Return a duration: "8 s", "4 min 10 s", "3 h 5 min", "2 d 4 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  const s = Math.max(0, Math.round(seconds));
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => s >= size);
  if (first < 0) return seconds > 0 ? "under 1 s" : "0 s";
  const parts = [];
  let left = s;
  for (const [size, name] of units.slice(first, first + 2)) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) parts.push(`${count} ${name}`);
  }
  return parts.join(" ");
}

/** Return how long ago something was that is `seconds` old: "now", "8 s ago". */
export function ago(seconds) {
  return Math.round(seconds) <= 0 ? "now" : `${duration(seconds)} ago`;
}

/** Return the local time of day of a point in time, with its day if it is not that of `now`. */
export function clock(at, now) {
  const time = new Date(1000 * at);
  const text = time.toLocaleTimeString("en-GB");
  return now !== undefined && new Date(1000 * now).toDateString() !== time.toDateString()
    ? `${time.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${text}`
    : text;
}

/** Return a count with its noun: "1 worker", "2 workers". */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return a size in bytes: "3.2 MB". */
export function bytes(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let value = count;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${number(value, 3)} ${units[at]}`;
}
