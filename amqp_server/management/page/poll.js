// Asks for the shown data again every few seconds, while the page is visible.

import {problem} from "./notice.js";

export const EVERY_S = 5;

/** Like `repeat`; the page says why its data is not up to date. */
export const poll = (signal, refresh) => repeat(signal, refresh, problem);

/**
 * Call `refresh` at intervals until `signal` ends it, and `told` with its error, or null. Returns a function that calls it
 * at once.
 */
export function repeat(signal, refresh, told, every_s = EVERY_S) {
  let timer = 0;
  let running = false;
  let again = false;

  async function run() {
    if (running) {
      again = true;
      return;
    }
    clearTimeout(timer);
    running = true;
    try {
      do {
        again = false;
        await refresh();
      } while (again && !signal.aborted);
      if (!signal.aborted) told(null);
    } catch (error) {
      if (!signal.aborted && error.name !== "AbortError") told(error);
    }
    running = false;
    if (!signal.aborted && !document.hidden) timer = setTimeout(run, every_s * 1000);
  }

  document.addEventListener("visibilitychange", () => document.hidden || run(), {signal});
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
  return run;
}
