// Sorts a table by a click on a heading (or Enter or Space on it). What is missing stays last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const numeric = head.classList.contains("number");
    const valueOf = (row) => row.cells[column].dataset.value;
    head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before === "none" ? numeric : before === "ascending";
      const compare = (left, right) => {
        const [a, b] = [valueOf(left), valueOf(right)];
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        const order = numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
        return down ? -order : order;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
