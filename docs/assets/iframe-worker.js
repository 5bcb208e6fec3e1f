// Search in pages that are read from the disk. Browsers start no worker from a file: address, so what the worker would
// do is done in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.frame.addEventListener("load", () => this.begin(url), { once: true });
      document.body.append(this.frame);
    }

    begin(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => Promise.all(urls.map((each) => load(inside, each)));
      load(inside, url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (this.waiting !== null) {
        this.waiting.push(data);
        return;
      }
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };

  function load(inside, url) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = done;
      script.onerror = failed;
      inside.document.head.append(script);
    });
  }
}
