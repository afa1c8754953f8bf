export { Service } from './cjs/testing.js';
