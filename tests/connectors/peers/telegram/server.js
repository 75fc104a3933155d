// Runs telegram-test-api, an independent Telegram server, on a free loopback port. Prints its URL first and exits with its stdin.
'use strict';

const net = require('node:net');
const TelegramServer = require('telegram-test-api');

async function freePort() {
  const probe = net.createServer();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

async function main() {
  const server = new TelegramServer({ host: '127.0.0.1', port: await freePort(), storage: 'RAM', storeTimeout: 600 });
  await server.start();
  process.stdout.write(`${server.config.apiURL}\n`);
  process.stdin.on('end', () => process.exit(0));
  process.stdin.resume();
}

main();
