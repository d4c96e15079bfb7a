"""How the page looks: light and dark, on a phone, on paper, and in the few colours that a reader insists on."""

STYLE = """\
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--dim:#566273;--line:#d8dee6;--soft:#eef1f5;
--link:#1d5fa8;--service:#137a43;--infra:#1f66b0;--security:#7a45b8;--failed:#b81d3c;--ended:#5d6774;--later:#137a6b;--soon:#a65f00;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--page:#11161d;--card:#1a212b;--ink:#e6ebf2;--dim:#9fadbf;--line:#313c4a;
--soft:#222b37;--link:#7fb8f5;--service:#4fcf88;--infra:#6db3f7;--security:#c39af2;--failed:#ff7d93;--ended:#98a4b3;--later:#4fcfbb;--soon:#f0a94a;
--warn:#f0b64a}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{font:1rem/1.5 system-ui,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;margin:0;background:var(--page);
color:var(--ink)}
main,header,footer{max-width:72rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2rem}footer{padding-bottom:3rem;color:var(--dim);font-size:.875rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .25rem;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{font-size:1.3rem;line-height:1.3;margin:0 0 .5rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h3{font-size:1.02rem;margin:1.6rem 0 .5rem;overflow-wrap:anywhere}
p{margin:.5rem 0;max-width:52rem}a{color:var(--link);text-underline-offset:.15em}
p,td,dd,li,summary{overflow-wrap:anywhere}
.dim,.more,.none,caption,footer{color:var(--dim)}.more,.none,.note{font-size:.9rem}.note{color:var(--dim)}
nav{margin:1rem 0 0;display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;font-size:.95rem}
section{background:var(--card);border:1px solid var(--line);border-radius:.75rem;
padding:1.25rem 1.4rem;margin:1.25rem 0}
section section{border:0;padding:0;margin:0}
.node{content-visibility:auto;contain-intrinsic-size:auto 1400px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.25rem 0;padding:0;
list-style:none}
.tiles a{display:block;height:100%;background:var(--card);border:1px solid var(--line);border-radius:.75rem;
padding:.8rem 1rem;color:inherit;text-decoration:none;border-top:.3rem solid var(--line)}
.tiles a:hover,.tiles a:focus-visible{border-color:currentColor}
.tiles b{display:block;font-size:1.9rem;line-height:1.15;font-variant-numeric:tabular-nums}
.tiles a>span{display:block;font-size:.9rem}.tiles small{display:block;color:var(--dim);font-size:.8rem}
.service{--tint:var(--service)}.infra{--tint:var(--infra)}.security{--tint:var(--security)}
.failed{--tint:var(--failed)}.ended{--tint:var(--ended)}.warn{--tint:var(--warn)}
.tiles .service,.tiles .infra,.tiles .security,.tiles .failed,.tiles .warn{border-top-color:var(--tint)}
.mark{color:var(--tint);font-weight:600}
.mark>span:first-child{display:inline-block;min-width:1em;text-align:center}
.set,.option{white-space:nowrap}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-size:.925rem}
caption{text-align:left;font-size:.85rem;padding:.2rem 0}
th,td{text-align:left;vertical-align:top;padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;font-size:.8rem;color:var(--dim);white-space:nowrap}tbody tr:last-child td{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td b{font-weight:600}
time{font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:.85em/1.4 ui-monospace,"Cascadia Mono",Menlo,"DejaVu Sans Mono",monospace;background:var(--soft);
padding:.1em .35em;border-radius:.3em;overflow-wrap:anywhere;
-webkit-box-decoration-break:clone;box-decoration-break:clone}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));
gap:.55rem 1.5rem;margin:.5rem 0}
.facts dt{font-size:.8rem;color:var(--dim)}.facts dd{margin:0}
.verdict{border-left:.35rem solid var(--tint,var(--line));background:var(--soft);border-radius:.3rem;
padding:.55rem .9rem;margin:.6rem 0}
.verdict p{margin:.15rem 0}
.picture{overflow-x:auto;margin:.5rem 0}.picture svg{width:100%;min-width:40rem;height:auto;display:block}
.whole{display:block;width:100%;height:34px}.bar{display:block;width:100%;height:13px;min-width:4rem}
.box{display:block;width:100%;height:1.75rem;min-width:9rem}
svg{color:var(--ink);font-family:inherit;fill:currentColor}
svg .service{color:var(--service)}svg .infra{color:var(--infra)}svg .security{color:var(--security)}
svg .soon{color:var(--soon)}svg .later{color:var(--later)}svg .failed{color:var(--failed)}
svg .ended{color:var(--ended)}svg .warn{color:var(--warn)}
.edge{stroke:currentColor;stroke-width:1.2}.grid{stroke:var(--line);stroke-width:1}
.hatch{stroke:currentColor;fill:none}.faint{fill:var(--dim)}.plain{fill:var(--card)}.word{fill:var(--ink)}.way{stroke:var(--dim);fill:none;stroke-width:1.5}
.key{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;list-style:none;margin:.6rem 0;padding:0;font-size:.9rem}
.key svg{width:1.6rem;height:.9rem;vertical-align:-.1rem;margin-right:.35rem}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--link);font-size:.925rem}
.states td:nth-child(3){width:45%}.waits td:nth-child(4){width:22%}.timing td:nth-child(5){width:30%}
.top{font-size:.85rem;margin:.8rem 0 0}
@media screen and (max-width:52rem){
main,header,footer{padding-left:.8rem;padding-right:.8rem}header{padding-top:1.2rem}
h1{font-size:1.5rem}section{padding:.9rem .9rem;border-radius:.6rem}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:.5rem}.tiles b{font-size:1.5rem}.tiles a{padding:.6rem .7rem}
table,tbody,tr,td,caption{display:block;width:auto}thead{position:absolute;width:1px;height:1px;overflow:hidden;
clip-path:inset(50%)}
tbody tr{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .7rem;margin:.5rem 0}
td,td.n{border:0;padding:.12rem 0;text-align:left;white-space:normal}td:empty{display:none}
td[data-t],td.n[data-t]{display:flow-root;padding-left:6.7rem}
td[data-t]::before{content:attr(data-t);float:left;width:6.2rem;margin-left:-6.7rem;color:var(--dim);font-size:.8rem;
padding-top:.15em}
td[data-t=""]{padding-left:0}
.states tr{display:grid;grid-template-columns:1fr auto;border-width:0 0 1px;border-radius:0;
margin:0;padding:.35rem 0}.states td,.states td.n{padding-left:0;min-height:0}.states td::before{content:none}
.states td:nth-child(3){grid-column:1/-1}.states td:nth-child(4)[data-t]{display:none}
.tiles li:last-child:nth-child(odd){grid-column:1/-1}
.states td:nth-child(3),.waits td:nth-child(4),.timing td:nth-child(5){width:auto}
.set{white-space:normal}}
@media print{
:root{color-scheme:light;--page:#fff;--card:#fff;--ink:#000;--dim:#333;--line:#999;--soft:#fff;--link:#000}
html{font-size:9pt}.tiles{grid-template-columns:repeat(5,1fr);gap:.5rem}main,header,footer{max-width:none;padding:0}nav,.top{display:none}
section{border:0;border-top:1.5pt solid #000;border-radius:0;padding:.6rem 0 0;margin:1rem 0}
.node{break-before:page;content-visibility:visible}
tr,svg,.verdict,.facts div,.tiles li{break-inside:avoid}h2,h3{break-after:avoid}thead{display:table-header-group}
.picture{overflow:visible}.picture svg{min-width:0}.verdict{border:1pt solid #000;border-left-width:4pt}
code{background:none;padding:0}details::details-content{content-visibility:visible;height:auto}
.mark{color:#000}}
@media(forced-colors:active){
:root{--page:Canvas;--card:Canvas;--ink:CanvasText;--dim:CanvasText;--line:CanvasText;--soft:Canvas;--link:LinkText;
--service:CanvasText;--infra:CanvasText;--security:CanvasText;--failed:CanvasText;--ended:CanvasText;--later:CanvasText;
--soon:CanvasText;--warn:CanvasText}
svg{forced-color-adjust:none}.verdict{border:1px solid}}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
"""
