"use strict"
// Shows what /status says, once a second. Every text is set as text: a job's name can be no markup.
const EVERY_MS = 1000, SPAN_S = 600, ROWS = 12, SVG = "http://www.w3.org/2000/svg"
const one = selector => document.querySelector(selector)

function size(bytes) {
  if (bytes == null) return ""
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  let n = 0
  while (bytes >= 1024 && n < units.length - 1) { bytes /= 1024; n++ }
  return n ? `${bytes.toFixed(1)} ${units[n]}` : `${bytes} B`
}

function made(tag, kind, text) {
  const element = document.createElement(tag)
  if (kind) element.className = kind
  if (text !== undefined) element.textContent = text
  return element
}

// columns: [heading, class, row => text or element]
function table(at, columns, rows, none) {
  const body = made("tbody")
  for (const row of rows) {
    const line = made("tr")
    for (const [, kind, shown] of columns) {
      const cell = made("td", kind), what = shown(row)
      cell.append(what instanceof Node ? what : document.createTextNode(what ?? ""))
      line.append(cell)
    }
    body.append(line)
  }
  if (!rows.length) {
    const line = made("tr"), cell = made("td", "none", none)
    cell.colSpan = columns.length
    line.append(cell)
    body.append(line)
  }
  const head = made("thead"), names = made("tr")
  for (const [name, kind] of columns) names.append(made("th", kind, name))
  head.append(names)
  at.replaceChildren(head, body)
}

const badge = row => made("span", `state ${row.state}`, row.state)
const clock = row => new Date(row.time).toLocaleTimeString()

function models(rows) {
  table(one("#models table"), [
    ["model", "", row => row.model], ["state", "", badge], ["memory", "number", row => size(row.bytes)],
    ["answering", "number", row => String(row.active)], ["waiting", "number", row => String(row.waiting)],
  ], rows, "no models")
}

function devices(rows) {
  one("#devices ul").replaceChildren(...(rows ?? []).map(row => {
    const line = made("li"), track = made("span", "track"), bar = made("i")
    bar.style.width = `${100 * row.used_bytes / row.total_bytes}%`
    track.append(bar)
    line.append(made("span", "name", `${row.label} ${row.name}`), track,
      made("data", "", `${size(row.used_bytes)} of ${size(row.total_bytes)}`))
    return line
  }))
  if (!rows?.length) one("#devices ul").append(made("li", "none", rows ? "no devices" : "not known just now"))
}

function jobs(rows) {
  table(one("#jobs table"), [
    ["job", "", row => row.job], ["pid", "number", row => String(row.pid ?? "")], ["state", "", badge],
    ["devices", "", row => row.devices.join(", ")], ["memory", "number", row => size(row.bytes)],
    ["still on the device", "number", row => row.resident_bytes ? size(row.resident_bytes) : ""],
  ], rows ?? [], rows ? "no jobs" : "not known just now")
}

function swaps(rows, now) {
  const recent = rows.filter(row => now - Date.parse(row.time) < SPAN_S * 1000)
  const most = Math.max(1, ...recent.map(row => row.took_s))
  one("#swaps svg").replaceChildren(...recent.map(row => {
    const line = document.createElementNS(SVG, "line"), title = document.createElementNS(SVG, "title")
    const x = 600 * (1 - (now - Date.parse(row.time)) / (SPAN_S * 1000))
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: 160, y2: 160 - 150 * row.took_s / most }))
      line.setAttribute(name, value)
    line.setAttribute("class", row.error ? "failed" : row.direction)
    title.textContent = `${clock(row)} ${row.job} ${row.direction} ${row.took_s.toFixed(3)} s ${row.error ?? ""}`
    line.append(title)
    return line
  }))
  one("#most").textContent = `full height: ${most.toFixed(1)} s`
  table(one("#swaps table"), [
    ["ended", "", clock], ["job", "", row => row.job], ["", "", row => row.direction],
    ["seconds", "number", row => row.took_s.toFixed(3)], ["moved", "number", row => row.error ? "" : size(row.bytes)],
    ["of the link", "number", row => row.link_share == null ? "" : `${Math.round(100 * row.link_share)} %`],
    ["", "long failed-text", row => row.error ?? ""],
  ], rows.slice(-ROWS).reverse(), "no swaps yet")
}

function show(status) {
  const now = Date.parse(status.time)
  one("#about").textContent = `gcr ${status.version}, ${new Date(now).toLocaleString()}`
  one("#simulated").hidden = !(status.jobs ?? []).concat(status.devices ?? []).some(row => row.simulated)
  models(status.models)
  devices(status.devices)
  swaps(status.swaps, now)
  jobs(status.jobs)
}

async function look() {
  const token = sessionStorage.getItem("token"), trouble = one("#trouble")
  try {
    const answer = await fetch("/status", { headers: token ? { Authorization: `Bearer ${token}` } : {} })
    one("#entry").hidden = answer.status !== 401
    if (answer.ok) show(await answer.json())
    trouble.textContent = answer.ok || answer.status === 401 ? "" : `gcr serve answered ${answer.status}`
  } catch {
    trouble.textContent = "gcr serve does not answer; these are its last words"
  }
  trouble.hidden = !trouble.textContent
  setTimeout(look, EVERY_MS)
}

one("#entry").addEventListener("submit", event => {
  event.preventDefault()
  sessionStorage.setItem("token", one("#token").value)
  one("#token").value = ""
})
look()
