// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

export function count(value) {
  return typeof value === "number" ? WHOLE.format(value) : "–";
}

export function short(value) {
  return SHORT.format(value);
}

export function rate(value) {
  if (typeof value !== "number") return "–";
  if (value === 0) return "0/s";
  return `${value >= 100 ? WHOLE.format(Math.round(value)) : value.toFixed(1).replace(/\.0$/, "")}/s`;
}

export function bytes(value) {
  if (typeof value !== "number") return "–";
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (left < 1024) return `${left < 10 && unit !== "B" ? left.toFixed(1) : Math.round(left)} ${unit}`;
    left /= 1024;
  }
  return `${left < 10 ? left.toFixed(1) : Math.round(left)} TiB`;
}

export function duration(ms) {
  if (typeof ms !== "number") return "–";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function time(ms) {
  return ms ? new Date(ms).toLocaleString() : "–";
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"});
}

export function json(value) {
  return JSON.stringify(value, null, 1);
}

/** Arguments in one line. */
export function table(value) {
  return Object.entries(value ?? {})
    .filter(([, each]) => each !== undefined)
    .map(([key, each]) => `${key}=${typeof each === "string" ? each : JSON.stringify(each)}`)
    .join(", ");
}

export function yes(value) {
  return value ? "yes" : "no";
}

/** Return the value at a path such as "message_stats.publish_details.rate". */
export function at(row, path) {
  return path.split(".").reduce((value, step) => value?.[step], row);
}
