import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// `npm run dev` serves the web app and forwards API requests to a running server, by default the one on port 7717.
const serverUrl = process.env.RETINUE_ADDRESS ?? "http://127.0.0.1:7717";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/retinue/_web",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // no data: URLs, because the content security policy forbids them for scripts and styles
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": { target: serverUrl, ws: true, changeOrigin: true } } },
});
