export * from './cjs/testing.js';
