/** Let the browser save generated content as a file. */
export function download(name: string, parts: string[], type: string): void {
  const href = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 1_000);
}
