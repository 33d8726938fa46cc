// SPDX-License-Identifier: GPL-3.0-or-later
// A screen at the WebSocket whose path the page is given, as noVNC's page is: ?path=PATH%3Ftoken%3DTOKEN. spice-html5
// opens one for each channel. When a session ends, the page tries for a while to begin another: a server that has moved
// goes on at its new host.
const TRIES = 10;
const PAUSE = 1000;
const LOOK = 50;
const status = document.getElementById("status");
const keys = document.getElementById("keys");
const path = new URLSearchParams(window.location.search).get("path");
let spice = null;
let session = null;
let opened = false;
let left = 0;

function ended() {
  keys.disabled = true;
  session.stop();
  document.getElementById("screen").replaceChildren();
  if (left > 0) {
    left -= 1;
    status.textContent = "connecting again …";
    window.setTimeout(begin, PAUSE);
    return;
  }
  status.textContent = opened ? "ended: the server has stopped, or somebody else has opened its screen"
    : "not connected: this URL was used or has expired, or the server does not run. Ask for a new one.";
}

// The guest has SPICE's agent: its screen gets the size of the window.
function agreed() {
  window.spice_connection = session;
  window.addEventListener("resize", spice.handle_resize);
  spice.resize_helper(session);
}

function begin() {
  const scheme = window.location.protocol === "https:" ? "wss" : "ws";
  session = new spice.SpiceMainConn({
    uri: scheme + "://" + window.location.host + "/" + path, screen_id: "screen", password: "",
    onerror: ended, onagent: agreed, onsuccess: () => {
      opened = true;
      left = TRIES;
      ready(session);
    } });
}

// spice-html5 drops keys until its channel for them is open, which it does not report.
function ready(main) {
  if (main !== session || status.textContent.startsWith("ended")) return;
  if (main.inputs?.state !== "ready") {
    window.setTimeout(ready, LOOK, main);
    return;
  }
  keys.disabled = false;
  status.textContent = "connected";
}

keys.onclick = () => spice.sendCtrlAltDel(session);
if (!path) {
  status.textContent = "The URL lacks its path: open it as it was given.";
} else {
  try {
    spice = await import("./spice-html5/main.js");
    begin();
  } catch (error) {
    status.textContent = "spice-html5 is not installed with the API: an administrator installs Debian's package spice-html5 there.";
    throw error;
  }
}
