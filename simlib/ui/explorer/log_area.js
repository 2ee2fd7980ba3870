// SPDX-License-Identifier: BSD-3-Clause
// Text area for a log. The kernel receives the text when it has rested, and never a text that is too long.

const SETTLED_MS = 250;

function render({ model, el }) {
  const label = document.createElement("label");
  label.className = "simlib-log";
  const title = document.createElement("span");
  title.textContent = "Paste a log";
  const area = document.createElement("textarea");
  area.rows = 4;
  area.spellcheck = false;
  area.placeholder =
    "virsh domjobinfo or domstats, info migrate, QMP replies, a log of Proxmox VE, Nova, KubeVirt or Cloud Hypervisor. " +
    "Or describe the guest below.";
  area.value = model.get("value");
  const refusal = document.createElement("div");
  refusal.className = "simlib-error";
  refusal.setAttribute("role", "alert");
  label.append(title, area);
  el.append(label, refusal);

  let timer = 0;
  function send() {
    timer = 0;
    const bytes = new Blob([area.value]).size;
    const limit = model.get("limit");
    refusal.textContent =
      bytes > limit ? `The log has ${bytes.toLocaleString("en")} bytes, and may have ${limit.toLocaleString("en")}; paste its end only.` : "";
    if (bytes <= limit && area.value !== model.get("value")) {
      model.set("value", area.value);
      model.save_changes();
    }
  }
  function later() {
    clearTimeout(timer);
    timer = setTimeout(send, SETTLED_MS);
  }
  function show() {
    if (!timer && area.value !== model.get("value")) area.value = model.get("value");
  }

  area.addEventListener("input", later);
  model.on("change:value", show);
  return () => {
    clearTimeout(timer);
    model.off("change:value", show);
  };
}

export default { render };
