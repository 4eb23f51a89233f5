// The token of this server, which the tab keeps, and the addresses of its pages.

const KEPT = "edl-token"; // in this tab only, and for this address and port only

/** Return the token in the address, which is removed from there, or else the kept one. */
export function givenToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    keepToken(given);
    history.replaceState(null, "", location.pathname);
  }
  return given ?? sessionStorage.getItem(KEPT) ?? "";
}

/** Keep the token for other pages of this server in this tab. */
export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

/** Forget the token, because the server refuses it. */
export function forgetToken() {
  sessionStorage.removeItem(KEPT);
}

/** Return the token in what somebody has typed: an address, or the token alone. */
export function typedToken(text) {
  const given = text.includes("token=") ? text.slice(text.indexOf("token=") + 6) : text;
  return given.trim();
}

/** Return the address of the page of a job of the cluster; a new tab needs the token there, too. */
export function jobAddress(job, token) {
  return `/jobs/${encodeURIComponent(job)}/#token=${token}`;
}
