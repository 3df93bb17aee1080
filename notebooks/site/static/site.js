// The arrows of the theme's navigation have no name for those who do not see them.
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll("nav summary")) {
    const page = one.closest("li")?.querySelector("a")?.textContent.trim();
    one.setAttribute("aria-label", `Pages under ${page}`);
  }
});
