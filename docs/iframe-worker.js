// Browsers start no workers for pages that are opened as files. There, the search's
// worker runs in a hidden frame instead, which is given and gives the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      const inside = frame.contentWindow;
      inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((done) => {
        const script = inside.document.createElement("script");
        script.onload = () => done(inside);
        script.src = url;
        inside.document.body.append(script);
      });
    }

    async postMessage(data) {
      const inside = await this.loaded;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
