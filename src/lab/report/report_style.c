/* The style of the report. Colours are variables, which the plots use too: Okabe and Ito's palette, darkened for
   light pages and lightened for dark ones, so that each has a contrast of 3 or more against its background. */
#include <stddef.h>

#include "lab/report/report_parts.h"

#define LIGHT                                                                                              \
    "--paper:#fffdf8;--raised:#f6f2e9;--ink:#201d18;--soft:#625b50;--grid:#e3ddd0;--link:#0a5a96;"         \
    "--good:#05694c;--good-ground:#e3f2ea;--bad:#a8330a;--bad-ground:#fbe9e0;--open:#6f5500;"              \
    "--open-ground:#f8efd3;--s0:#0a6cb3;--s1:#c74f06;--s2:#087f5f;--s3:#a83a80;--s4:#8d6b00;--s5:#45413a;" \
    "--s6:#3f8fc4;--s7:#8b4a2b;"
#define DARK                                                                                               \
    "--paper:#16171a;--raised:#202226;--ink:#e9e6df;--soft:#aba69b;--grid:#35373c;--link:#7cc0f2;"         \
    "--good:#5ad1a5;--good-ground:#12302a;--bad:#ff9a6b;--bad-ground:#3a1f15;--open:#e5c15a;"              \
    "--open-ground:#322a12;--s0:#5cb2f0;--s1:#ff9052;--s2:#35cda0;--s3:#e98fc6;--s4:#e2bb48;--s5:#d6d2c8;" \
    "--s6:#a8d8ff;--s7:#d39b78;"

const char *const carry_report_style[] = {
    ":root{color-scheme:light dark;" LIGHT "}\n"
    "@media screen and (prefers-color-scheme:dark){:root{" DARK "}}\n"
    "*{box-sizing:border-box}\n"
    "html{font-size:106.25%;-webkit-text-size-adjust:100%;text-size-adjust:100%}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;"
    "font-family:'Iowan Old Style','Palatino Linotype',Palatino,'URW Palladio L','P052','Book Antiqua',Georgia,serif;"
    "font-variant-numeric:oldstyle-nums;hyphens:manual;overflow-wrap:break-word}\n"
    "main{max-width:69rem;margin:0 auto;padding:clamp(1.25rem,4vw,3.5rem) clamp(1rem,4vw,3rem)}\n"
    "h1,h2,h3{line-height:1.2;font-weight:600;text-wrap:balance}\n"
    "h1{font-size:clamp(1.9rem,1.4rem + 2.4vw,3rem);margin:.1em 0 .35em;letter-spacing:-.01em}\n"
    "h2{font-size:1.5rem;margin:2em 0 .6em;padding-top:.8em;border-top:1px solid var(--grid)}\n"
    "h3{font-size:1.18rem;margin:2em 0 .6em}\n"
    "p,ul,dl{max-width:40rem;text-wrap:pretty}\n"
    "a{color:var(--link);text-underline-offset:.15em}\n"
    "code,pre,.kicker,nav,.missing,table,figcaption,.legend,dl,.counts,svg "
    "text{font-family:ui-sans-serif,system-ui,-apple-system,"
    "'Segoe UI',Roboto,'Noto Sans','Liberation Sans','DejaVu Sans',sans-serif}\n"
    "code,pre{font-family:ui-monospace,'SF Mono','Cascadia Mono',Menlo,'DejaVu Sans Mono','Liberation Mono',monospace;"
    "font-size:.92em}\n"
    ".kicker{margin:0;color:var(--soft);font-size:.9rem}\n"
    ".hypothesis{font-size:1.2rem;line-height:1.45;margin:0 0 1.6em;font-style:italic;color:var(--ink)}\n"
    "small{font-size:.82em;color:var(--soft);font-weight:400}\n",

    ".decision{margin:1.6rem 0;padding:1.1rem 1.4rem 1.2rem;border-left:.45rem solid;border-radius:.2rem}\n"
    ".decision p{margin:.1em 0;color:var(--ink)}\n"
    ".decision .word{font-size:clamp(2rem,1.6rem + 2vw,2.9rem);line-height:1.15;font-weight:700;color:inherit}\n"
    ".decision .counts{font-size:.98rem;margin-top:.35em;font-variant-numeric:lining-nums}\n"
    ".decision.good{background:var(--good-ground);border-color:var(--good);color:var(--good)}\n"
    ".decision.bad{background:var(--bad-ground);border-color:var(--bad);color:var(--bad)}\n"
    ".decision.open{background:var(--open-ground);border-color:var(--open);color:var(--open)}\n"
    ".decision.plain{background:var(--raised);border-color:var(--soft);color:var(--ink)}\n"
    ".warning{background:var(--open-ground);border-left:.3rem solid var(--open);padding:.7rem 1rem;grid-column:1/-1}\n"
    ".note{color:var(--soft);grid-column:1/-1}\n"
    "td.good,span.good{color:var(--good);font-weight:600}\n"
    "td.bad,span.bad{color:var(--bad);font-weight:600}\n"
    "td.open,span.open{color:var(--open)}\n"
    "td.soft{color:var(--soft)}\n"
    ".bad small{color:inherit}\n",

    /* A shadow at an edge shows that the table continues; the paper-coloured covers scroll with the table and hide
       the shadow at its end. */
    ".scroll{overflow-x:auto;margin:0 0 1.5rem;-webkit-overflow-scrolling:touch;background:"
    "linear-gradient(to left,var(--paper) 40%,transparent) right/2.5rem 100% no-repeat local,"
    "linear-gradient(to left,var(--grid),transparent) right 1px top 0/1.1rem 100% no-repeat scroll}\n"
    ".scroll:focus-visible{outline:2px solid var(--link);outline-offset:3px}\n"
    "table{border-collapse:collapse;font-size:.9rem;line-height:1.35;font-variant-numeric:tabular-nums lining-nums;"
    "min-width:100%}\n"
    "th,td{padding:.42em .9em .42em 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--grid)}\n"
    "th{font-weight:400}\n"
    "thead th{color:var(--soft);font-size:.92em;border-bottom:1.5px solid var(--ink);vertical-align:bottom}\n"
    ".n{text-align:right;white-space:nowrap}\n"
    "td.n+td:not(.n),th.n+th:not(.n){padding-left:.9em}\n"
    "th:last-child,td:last-child{padding-right:.2em}\n"
    "tbody th[scope=row]{white-space:nowrap}\n"
    "tbody+tbody .head th{padding-top:1.5em}\n"
    ".head th{padding-top:.9em;color:var(--soft)}\n"
    ".head b,.head code{color:var(--ink);font-weight:600}\n"
    ".head span{position:sticky;left:0}\n"
    ".best th,.best td{font-weight:600}\n"
    ".results th[scope=row],.results thead th:first-child{position:sticky;left:0;background:var(--paper);z-index:1}\n"
    ".criteria th[scope=row]{white-space:normal;min-width:15rem;width:45%}\n"
    ".criteria td:first-child{white-space:nowrap}\n"
    ".words{min-width:13rem;overflow-wrap:anywhere}\n"
    ".missing{max-width:none;font-size:.92rem;line-height:1.7;color:var(--soft)}\n"
    ".missing b{display:block;color:var(--open);font-weight:600}\n"
    ".missing code{margin-right:1.2em;font-size:.86em;overflow-wrap:anywhere}\n"
    "nav{font-size:.95rem;margin:0 0 1rem}\n"
    "nav a{margin-right:1.1em;white-space:nowrap}\n"
    "pre{overflow-x:auto;margin:0 0 1.2rem;padding:.9rem 1.1rem;background:var(--raised);border-radius:.2rem;"
    "line-height:1.45;tab-size:4;max-width:69rem}\n"
    "pre.wrapped{white-space:pre-wrap;overflow-wrap:anywhere}\n"
    "dl{display:grid;grid-template-columns:minmax(6.5rem,max-content) 1fr;gap:.28em 1.2em;margin:0 0 "
    "1.2rem;font-size:.92rem;"
    "font-variant-numeric:lining-nums;max-width:52rem}\n"
    "dt{color:var(--soft)}\n"
    "dd{margin:0;overflow-wrap:anywhere}\n",

    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:2.2rem 2.6rem;"
    "align-items:start}\n"
    "figure{margin:0;min-width:0;max-width:36rem}\n"
    "figcaption{font-size:.9rem;line-height:1.4;margin-bottom:.5rem;font-variant-numeric:lining-nums;overflow-wrap:"
    "anywhere}\n"
    "figcaption b{display:block;font-size:1.06rem;font-weight:600}\n"
    "figcaption span{color:var(--soft)}\n"
    "figure>svg{display:block;width:100%;height:auto;color:var(--ink);overflow:visible}\n"
    "svg text{font-size:14px;stroke:var(--paper);stroke-width:3px;paint-order:stroke;stroke-linejoin:round;"
    "font-variant-numeric:tabular-nums lining-nums}\n"
    "svg .gridline{stroke-dasharray:none}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;margin:0 0 "
    ".2rem;padding:0;font-size:.88rem}\n"
    ".legend li{display:flex;align-items:center;gap:.45em;overflow-wrap:anywhere}\n"
    ".swatch{width:1.9rem;height:.9rem;flex:none;fill:none}\n"
    "footer{margin-top:3rem;color:var(--soft);font-size:.88rem}\n"
    "@media screen and (max-width:40rem){svg text{font-size:15.5px}.criteria thead{display:none}"
    ".criteria,.criteria tbody,.criteria tr,.criteria td,.criteria th{display:block}"
    ".criteria tbody tr{padding:.6em 0;border-bottom:1px solid var(--grid)}"
    ".criteria td,.criteria tbody th[scope=row]{border:0;padding:.1em "
    "0;text-align:left;min-width:0;width:auto;overflow-wrap:anywhere}"
    ".criteria td.n+td.words{padding-left:0}.criteria td[data-label]{display:inline-block;margin-right:1.6em}"
    ".criteria td[data-label]:before{content:attr(data-label) ' ';color:var(--soft)}"
    ".criteria .head th{border:0;padding:.4em 0 0}}\n"
    "@media screen and "
    "(max-width:34rem){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5em}.decision{padding:.9rem "
    "1rem}}\n",

    "@media print{:root{--paper:#fff}@page{margin:16mm 14mm}html{font-size:10pt}main{max-width:none;padding:0}"
    "body{background:none}.scroll{overflow:visible;background:none}table,.missing{font-size:7.6pt}th,td{padding-right:."
    "6em}"
    ".results th,.results td{position:static!important}"
    "tbody,figure,.decision,dl,tr{break-inside:avoid}.pairs tbody{break-inside:auto}h2,h3,.head{break-after:avoid}"
    "thead{display:table-header-group}.decision{border:1.5pt solid;border-left-width:5pt;background:none!important}"
    ".figures{grid-template-columns:1fr 1fr;gap:7mm}figcaption,.legend{font-size:8pt}.words{min-width:0}"
    "nav{display:none}pre{background:none;border:.5pt solid "
    "var(--grid);white-space:pre-wrap;overflow-wrap:anywhere;font-size:7.5pt}"
    "a{color:inherit;text-decoration:none}}\n",
    NULL,
};
