// SHA-256 (FIPS 180-4), piece by piece. crypto.subtle hashes whole messages only, and is missing on pages over http.
"use strict";
const Sha256 = (() => {
  const ROUNDS = new Int32Array([
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  ]);
  const START = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
  const BLOCK_BYTES = 64;
  const words = new Int32Array(64); // of one block; used within one call only

  function compress(state, bytes, start) {
    for (let i = 0, at = start; i < 16; i += 1, at += 4) {
      words[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const x = words[i - 15];
      const y = words[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      words[i] = (words[i - 16] + s0 + words[i - 7] + s1) | 0;
    }
    let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUNDS[i] + words[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }

  return class {
    constructor() {
      this.state = Int32Array.from(START, (word) => word | 0);
      this.rest = new Uint8Array(BLOCK_BYTES); // of a block that is not complete
      this.restBytes = 0;
      this.numBytes = 0;
    }

    // Appends a Uint8Array to the message.
    update(bytes) {
      let at = 0;
      this.numBytes += bytes.length;
      if (this.restBytes) {
        at = Math.min(BLOCK_BYTES - this.restBytes, bytes.length);
        this.rest.set(bytes.subarray(0, at), this.restBytes);
        this.restBytes += at;
        if (this.restBytes < BLOCK_BYTES) return this;
        compress(this.state, this.rest, 0);
        this.restBytes = 0;
      }
      for (; at + BLOCK_BYTES <= bytes.length; at += BLOCK_BYTES) compress(this.state, bytes, at);
      this.rest.set(bytes.subarray(at));
      this.restBytes = bytes.length - at;
      return this;
    }

    // Ends the message, and returns the 32 bytes of its digest.
    digest() {
      const numBits = BigInt(this.numBytes) * 8n;
      const padding = new Uint8Array(1 + ((119 - (this.numBytes % BLOCK_BYTES)) % BLOCK_BYTES) + 8);
      padding[0] = 0x80;
      new DataView(padding.buffer).setBigUint64(padding.length - 8, numBits);
      this.update(padding);
      const found = new DataView(new ArrayBuffer(32));
      this.state.forEach((word, index) => found.setInt32(4 * index, word));
      return new Uint8Array(found.buffer);
    }
  };
})();
