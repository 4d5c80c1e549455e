#include "report/svg.h"

#include <cmath>

#include "base/number_text.h"

namespace brigade::report {
namespace {

// Returns the round step (1, 2 or 5 times a power of ten) that gives about `wanted` ticks.
double round_step(double range, int wanted) {
  const double rough = range / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string coordinate(double value) {
  const double rounded = std::round(value * 10) / 10 + 0.0;  // avoids -0
  return base::decimals(rounded, rounded == std::round(rounded) ? 0 : 1);
}

Scale::Scale(Kind kind, double low, double high, double from, double to)
    : kind_(kind), low_(low), high_(high), from_(from), to_(to) {}

Scale Scale::from_zero(double high, double from, double to) {
  return {Kind::linear, 0, high > 0 ? high * 1.04 : 1, from, to};
}

double Scale::operator()(double value) const {
  if (kind_ == Kind::linear) return from_ + (to_ - from_) * (value - low_) / (high_ - low_);
  return from_ + (to_ - from_) * std::log(value / low_) / std::log(high_ / low_);
}

bool Scale::holds(double value) const {
  const double slack = (high_ - low_) * 1e-9;
  return value >= low_ - slack && value <= high_ + slack;
}

std::vector<double> Scale::marks(int wanted) const {
  std::vector<double> all;
  if (kind_ == Kind::linear) {
    const double step = round_step(high_ - low_, wanted);
    for (double i = std::ceil(low_ / step - 1e-9); holds(i * step); ++i)
      all.push_back(i * step);
    return all;
  }
  const bool few = std::log10(high_ / low_) < 1.7;
  const double start = std::pow(10.0, std::floor(std::log10(low_)));
  for (double power = start; power <= high_ * 1.0001; power *= 10) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if ((factor == 1.0 || few) && holds(power * factor)) all.push_back(power * factor);
    }
  }
  return all;
}

}  // namespace brigade::report

// The look of the report: light or dark as the reader's system is set, one column on a
// telephone, three on a desktop.

namespace brigade::report {

const char* const kReportStyle = R"css(
:root{color-scheme:light dark;--page:#f6f5f2;--card:#fff;--ink:#1b1d22;--soft:#5d626d;--faint:#e6e4df;--lane:#f3f2ee;--accent:#0b6bcb;
--base:#1b1d22;--none:#a9adb6;--s1:#2a78d6;--s2:#12a06c;--s3:#e09a00;--s4:#d93a3a;--s5:#6a4fc8;--s6:#d9599a;--s7:#e8682a;--s8:#0a8f9c;--s9:#7a8b1f;--s10:#8a5a3c;
--b0:#0e8f8c;--b1:#3179d8;--b2:#7a55d6;--b3:#c443b4;--b4:#e0453f;--b5:#dd8a00;--b6:#4f9a2c;--b7:#7d6a58}
@media(prefers-color-scheme:dark){:root{--page:#121418;--card:#1b1e24;--ink:#eceef2;--soft:#9aa1ad;--faint:#2c3038;--lane:#22262d;--accent:#6db3ff;
--base:#f2f4f8;--none:#666d79;--s1:#5ca3f2;--s2:#35c48e;--s3:#f2b93b;--s4:#f26d6b;--s5:#a390f5;--s6:#f089bd;--s7:#f7905a;--s8:#3fc3cf;--s9:#b3c553;--s10:#c99470;
--b0:#2fb8b3;--b1:#5ca3f2;--b2:#a68cf5;--b3:#e07fd3;--b4:#f2716c;--b5:#f0b043;--b6:#86c864;--b7:#b8a48f}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1320px;margin:0 auto;padding:clamp(18px,3vw,44px) clamp(12px,2.5vw,36px)}
header{display:grid;gap:6px;margin-bottom:26px}
.brand{display:flex;align-items:center;gap:10px;color:var(--soft);font-weight:600;letter-spacing:.02em}
.brand svg{width:74px;height:22px}
h1{margin:0;font-size:clamp(26px,4vw,42px);line-height:1.12;letter-spacing:-.022em;font-weight:720;text-wrap:balance}
h2{margin:44px 0 4px;font-size:22px;letter-spacing:-.012em}
h2+p,.hint{margin:0 0 16px;color:var(--soft);max-width:74ch}
.lead{margin:0;font-size:16px;line-height:1.5;max-width:96ch;color:var(--soft)}.lead:first-of-type{font-size:clamp(17px,1.7vw,20px);color:var(--ink);margin-bottom:2px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:22px 0 0}
.tile{background:var(--card);border:1px solid var(--faint);border-radius:14px;padding:14px 16px}
.tile b{display:block;font-size:25px;line-height:1.15;letter-spacing:-.02em;font-weight:700}
.tile{min-width:0}.tile span{overflow-wrap:anywhere;color:var(--soft);font-size:13px;line-height:1.35;display:block;margin-top:3px}
.chips{position:sticky;top:0;z-index:2;display:flex;flex-wrap:wrap;gap:6px;padding:10px 0;margin:0 0 6px;background:linear-gradient(var(--page) 82%,transparent)}
.chip{display:inline-flex;align-items:center;gap:7px;border:1px solid var(--faint);background:var(--card);border-radius:99px;padding:3px 11px 3px 9px;font:inherit;font-size:13px;color:var(--ink);cursor:pointer}
.chip:hover,.chip[aria-pressed=true]{border-color:var(--ink)}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;background:var(--c);flex:none;margin-right:6px}.chip .dot{margin:0}
.grid3{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr));gap:14px}
.card{margin:0;background:var(--card);border:1px solid var(--faint);border-radius:14px;padding:14px 14px 10px;min-width:0}
figcaption{font-weight:650;margin-bottom:8px}figcaption span{font-weight:400;color:var(--soft)}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;font-variant-numeric:tabular-nums}
.tick,.label{fill:var(--soft)}.grid{stroke:var(--faint);stroke-width:1}.axis{stroke:var(--soft);stroke-opacity:.45;stroke-width:1}
.base{--c:var(--base)}.none{--c:var(--none)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}.s8{--c:var(--s8)}.s9{--c:var(--s9)}.s10{--c:var(--s10)}
.line{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}.line.base{stroke-width:3.2;opacity:.85}.line.none{stroke-dasharray:3 3}
.end{fill:var(--c);stroke:var(--card);stroke-width:1}
.line,.end,.bar,.card[data-name],tr[data-name]{transition:opacity .15s}
.focus [data-name]:not(.on):not(.chip){opacity:.13}.focus .line.on{stroke-width:3}
.bars{display:grid;gap:7px;font-size:13px}.bar{display:grid;grid-template-columns:minmax(0,14.2em) 1fr 4.8em;gap:10px;align-items:center}
.who{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.track{background:var(--lane);border-radius:5px;height:14px;overflow:hidden}
.track i{display:block;height:100%;background:var(--c);border-radius:5px}.num{text-align:right;color:var(--soft);white-space:nowrap}
.b0{--c:var(--b0)}.b1{--c:var(--b1)}.b2{--c:var(--b2)}.b3{--c:var(--b3)}.b4{--c:var(--b4)}.b5{--c:var(--b5)}.b6{--c:var(--b6)}.b7{--c:var(--b7)}
.lane{fill:var(--lane);fill-opacity:.75}.work{fill:var(--c)}.wire{fill:var(--c);fill-opacity:.34;stroke:var(--c);stroke-width:.8}.ready{fill:var(--c)}
.loop{fill:var(--soft);fill-opacity:.8}.loop.forward,.loop.optimizer{fill-opacity:.42}.wait{fill:url(#hatch);stroke:var(--soft);stroke-width:.6;stroke-opacity:.5}
svg .in{fill:var(--card);font-size:9.5px;font-weight:600;pointer-events:none}svg .in.on{fill:var(--ink)}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--faint);border-radius:14px}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:14px}th,td{padding:9px 14px;text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
thead th{color:var(--soft);font-weight:600;font-size:12.5px;border-bottom:1px solid var(--faint)}tbody tr+tr td{border-top:1px solid var(--faint)}
tr.parting td{color:var(--soft);font-weight:600;padding-top:18px;font-size:12.5px}
td .dot{margin-right:8px}.yes{color:var(--s2)}.no{color:var(--s4)}.soft{color:var(--soft)}
pre{margin:0 0 14px;background:var(--card);border:1px solid var(--faint);border-radius:12px;padding:12px 16px;overflow-x:auto;font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 22px;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:40px;color:var(--soft);font-size:13px}
#tip{position:fixed;z-index:3;pointer-events:none;background:var(--ink);color:var(--card);border-radius:8px;padding:5px 9px;font-size:12.5px;opacity:0;transition:opacity .1s}
@media(max-width:560px){.bar{grid-template-columns:1fr auto;gap:1px 8px}.bar .num{grid-area:1/2}.bar .track{grid-column:1/3}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}th,td{padding:8px 10px}.chips{position:static}}
@media print{.chips{position:static}body{background:#fff}}
)css";

const char* const kReportScript = R"js(
(() => {
  const page = document.querySelector("main"), tip = document.getElementById("tip");
  let held = null;
  const show = name => {
    page.classList.toggle("focus", name !== null);
    page.querySelectorAll("[data-name]").forEach(e => e.classList.toggle("on", e.dataset.name === name));
  };
  page.querySelectorAll(".chip").forEach(chip => {
    chip.addEventListener("mouseenter", () => show(chip.dataset.name));
    chip.addEventListener("mouseleave", () => show(held));
    chip.addEventListener("click", () => {
      held = held === chip.dataset.name ? null : chip.dataset.name;
      page.querySelectorAll(".chip").forEach(c => c.setAttribute("aria-pressed", c.dataset.name === held));
      show(held);
    });
  });
  page.querySelectorAll("svg.plot").forEach(plot => {
    const lines = [...plot.querySelectorAll(".line")].map(line => ({
      name: line.dataset.name,
      spots: line.getAttribute("d").slice(1).split("L").map(s => s.split(" ").map(Number)),
    }));
    plot.addEventListener("mousemove", event => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());
      let best = null, least = 14 * 14;
      for (const line of lines) for (const [x, y] of line.spots) {
        const d = (x - at.x) ** 2 + (y - at.y) ** 2;
        if (d < least) { least = d; best = line.name; }
      }
      show(best ?? held);
      tip.style.opacity = best ? 1 : 0;
      if (!best) return;
      tip.textContent = best;
      tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = event.clientY + 14 + "px";
    });
    plot.addEventListener("mouseleave", () => { tip.style.opacity = 0; show(held); });
  });
})();
)js";

}  // namespace brigade::report
