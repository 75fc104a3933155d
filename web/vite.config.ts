import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// `npm run dev` serves the page by itself and hands on what is the house's. RETINUE_ADDRESS says where that is.
const house = process.env.RETINUE_ADDRESS ?? "http://127.0.0.1:7717";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/retinue/_web",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // nothing as data: addresses: the page's policy does not take them for scripts and styles
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": { target: house, ws: true, changeOrigin: true } } },
});
