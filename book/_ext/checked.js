// Shows a badge's card on hover and on focus, above or below the badge. Without this script a click shows it, mid-page.
for (const badge of document.querySelectorAll(".checked")) {
  const [button, card] = badge.children;
  let leaving;
  const show = () => {
    clearTimeout(leaving);
    if (card.matches(":popover-open")) return;
    card.style.maxHeight = "";
    card.showPopover();
    const at = button.getBoundingClientRect(), { width, height } = card.getBoundingClientRect(), edge = 8;
    const left = Math.max(edge, Math.min(innerWidth - width - edge, at.left + at.width / 2 - width / 2));
    const above = at.top - edge, below = innerHeight - at.bottom - edge;
    const up = above > Math.min(height, below); // else below the badge, or where there is more room
    card.style.maxHeight = `${up ? above : below}px`; // a longer card scrolls
    card.style.inset = `${up ? at.top - Math.min(height, above) : at.bottom}px auto auto ${left}px`;
  };
  const hide = () => (leaving = setTimeout(() => badge.matches(":hover, :focus-within") || card.hidePopover(), 150));
  badge.onmouseenter = badge.onfocusin = button.onfocus = show;
  badge.onmouseleave = hide;
  badge.addEventListener("focusout", hide);
}
// A link to a check opens the cell that it is folded in.
const unfold = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("hashchange", unfold);
unfold();
