// SPDX-License-Identifier: GPL-3.0-or-later
// A terminal at the WebSocket whose path the page is given, as noVNC's page is: ?path=PATH%3Ftoken%3DTOKEN. The server
// sends binary messages; what is typed goes back the same way, and the text message "break" is a break.
"use strict";
(function () {
  const status = document.getElementById("status");
  const sendBreak = document.getElementById("break");
  const path = new URLSearchParams(window.location.search).get("path");
  if (typeof window.Terminal === "undefined") {
    status.textContent = "xterm.js is not installed with the API: an administrator installs Debian's package node-xterm there.";
    return;
  }
  const terminal = new window.Terminal({ cols: 80, rows: 24, scrollback: 10000, cursorBlink: true });
  terminal.open(document.getElementById("terminal"));

  // As many columns and rows as there is room for; the guest cannot be told, stty does it there.
  function fit() {
    const room = document.getElementById("terminal");
    const row = room.querySelector(".xterm-rows, .xterm-screen, canvas");
    const one = row && { wide: row.getBoundingClientRect().width / terminal.cols,
                         high: row.getBoundingClientRect().height / terminal.rows };
    if (one && one.wide > 1 && one.high > 1) {
      terminal.resize(Math.max(80, Math.floor((room.clientWidth - 24) / one.wide)),
                      Math.max(24, Math.floor((room.clientHeight - 8) / one.high)));
    }
  }

  if (!path) {
    status.textContent = "The URL lacks its path: open it as it was given.";
    return;
  }
  const scheme = window.location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(scheme + "://" + window.location.host + "/" + path, ["binary"]);
  socket.binaryType = "arraybuffer";
  const decoder = new TextDecoder("utf-8");
  const encoder = new TextEncoder();
  let opened = false;

  function typed(text) {
    if (socket.readyState === WebSocket.OPEN) {
      socket.send(encoder.encode(text));
    }
  }

  if (terminal.onData) {  // since version 4
    terminal.onData(typed);
  } else {
    terminal.on("data", typed);
  }
  socket.onopen = () => {
    opened = true;
    status.textContent = "connected";
    sendBreak.disabled = false;
    fit();
    terminal.focus();
  };
  socket.onmessage = (event) => terminal.write(decoder.decode(new Uint8Array(event.data), { stream: true }));
  socket.onclose = (event) => {
    sendBreak.disabled = true;
    status.textContent = opened ? "ended" + (event.reason ? ": " + event.reason : "")
      : "not connected: this URL was used or has expired, or the server does not run. Ask for a new one.";
  };
  sendBreak.onclick = () => {
    socket.send("break");
    terminal.focus();
  };
  window.addEventListener("resize", fit);
}());
